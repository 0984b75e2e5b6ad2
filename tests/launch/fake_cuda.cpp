// Stands in for the NVIDIA driver's library: shows one GPU, as the environment describes it.
#include <cstdlib>
#include <cstring>

namespace {
long number(const char* name) { return std::atol(std::getenv(name)); }
}  // namespace

extern "C" {
int cuInit(unsigned) { return 0; }
int cuDeviceGetCount(int* count) { return *count = number("FAKE_COUNT"), 0; }
int cuDeviceGet(int* device, int) { return *device = 0, number("FAKE_COUNT") ? 0 : 101; }
int cuDriverGetVersion(int* version) { return *version = number("FAKE_DRIVER"), 0; }
int cuDeviceGetName(char* name, int size, int) { return std::strncpy(name, "NVIDIA H100", size), 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = number("FAKE_MEMORY"), 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  int sm = number("FAKE_SM");
  return *value = attribute == 75 ? sm / 10 : sm % 10, 0;
}
}
