// Stands in for the libraries of the NVIDIA driver, CUDA's and NVML: shows one GPU, as the environment describes it.
#include <cstdlib>
#include <cstring>
#include <string>

namespace {
const std::string kUuid = "GPU-30313233-3435-3637-3839-616263646566";
long number(const char* name) { return std::atol(std::getenv(name)); }
}  // namespace

extern "C" {
int cuInit(unsigned) { return 0; }
int cuDeviceGetCount(int* count) { return *count = number("FAKE_COUNT"), 0; }
int cuDeviceGet(int* device, int) { return *device = 0, number("FAKE_COUNT") ? 0 : 101; }
int cuDriverGetVersion(int* version) { return *version = number("FAKE_DRIVER"), 0; }
int cuDeviceGetName(char* name, int size, int) { return std::strncpy(name, "NVIDIA H100", size), 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = number("FAKE_MEMORY"), 0; }
int cuDeviceGetUuid_v2(char* uuid, int) { return std::memcpy(uuid, "0123456789abcdef", 16), 0; }
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) { return *handle = nullptr, kUuid == uuid ? 0 : 6; }
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  memory[0] = number("FAKE_MEMORY"), memory[1] = number("FAKE_FREE"), memory[2] = memory[0] - memory[1];
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  int sm = number("FAKE_SM");
  return *value = attribute == 75 ? sm / 10 : sm % 10, 0;
}
}
