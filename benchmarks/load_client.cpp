// A client of the completions API that costs so little that it is not what is measured: one thread, epoll, HTTP/1.1
// over connections that are kept, server-sent events.
//
//   load_client ADDRESS PORT[,PORT...] REQUEST CONNECTIONS RATE SECONDS LOG
//
// REQUEST is a file with the body of a request, in which the text SEED, of the request's number, stands once. With RATE
// 0 each connection sends a request as soon as its last one has ended; else requests are due so often a second, and one
// that finds no connection free is sent late but noted as when it was due. After SECONDS nothing more is sent; what is
// under way may end. LOG gets records of `Moment`. Answers have to be 200.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "moment.hpp"

namespace {

// A moment's `count`: bytes of text of the request so far; of a whole answer those of its body.
enum What : uint32_t { kSent, kText, kEnd };

constexpr std::string_view kSeed = "SEED";
// What is under way at the end has this long.
constexpr uint64_t kEndNs = 20'000'000'000;
// After news it looks on for so long before it sleeps: to wake it takes the core of who sends, which a client of
// another machine does not.
constexpr uint64_t kAwakeNs = 500'000;

[[noreturn]] void fail(const char* what, std::string_view detail = {}) {
  std::fprintf(stderr, "load_client: %s %.*s\n", what, static_cast<int>(detail.size()), detail.data());
  std::exit(1);
}

struct Connection {
  int socket = -1;
  uint64_t seed = 0;
  bool busy = false;
  std::string received = {};  // and not parsed yet
  bool in_body = false, chunked = false;
  size_t left = 0;         // of the body, or of the chunk and the line end behind it
  std::string event = {};  // the part of an event that has come
  uint32_t bytes = 0;
};

class Client {
 public:
  Client(std::string request, FILE* log) : log_(log) {
    const size_t at = request.find(kSeed);
    if (at == std::string::npos) fail("the request has no SEED");
    before_ = request.substr(0, at);
    after_ = request.substr(at + kSeed.size());
    epoll_ = epoll_create1(0);
  }

  void connect(const char* address, uint16_t port) {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    if (inet_pton(AF_INET, address, &to.sin_addr) != 1) fail("no IPv4 address:", address);
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(s, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) fail("cannot connect:", strerror(errno));
    const int on = 1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connections_.push_back({s});
  }

  void run(double rate, double seconds) {
    for (size_t i = 0; i < connections_.size(); ++i) {
      epoll_event interest = {};
      interest.events = EPOLLIN;
      interest.data.u64 = i;
      epoll_ctl(epoll_, EPOLL_CTL_ADD, connections_[i].socket, &interest);
      free_.push_back(i);
    }
    const uint64_t begin = clock_ns(), end = begin + static_cast<uint64_t>(seconds * 1e9);
    const double gap_ns = rate > 0 ? 1e9 / rate : 0;
    epoll_event events[256];
    uint64_t news = begin;
    for (;;) {
      const uint64_t now = clock_ns();
      if (now >= end && (free_.size() == connections_.size() || now >= end + kEndNs)) break;
      int pause_ms = 100;
      while (now < end && !free_.empty()) {
        const uint64_t due = rate > 0 ? begin + static_cast<uint64_t>(gap_ns * static_cast<double>(sent_)) : now;
        if (due > now) {
          pause_ms = static_cast<int>((due - now) / 1'000'000);
          break;
        }
        send(connections_[free_.back()], due);
        free_.pop_back();
      }
      const int count = epoll_wait(epoll_, events, 256, now < news + kAwakeNs ? 0 : pause_ms);
      if (count > 0) news = clock_ns();
      for (int i = 0; i < count; ++i) receive(events[i].data.u64);
    }
    if (free_.size() != connections_.size()) fail("requests do not end");
    flush();
    std::printf("{\"sent\": %llu, \"refused\": %llu}\n", static_cast<unsigned long long>(sent_),
                static_cast<unsigned long long>(refused_));
  }

 private:
  void send(Connection& c, uint64_t due) {
    c.seed = ++sent_;
    c.busy = true;
    c.bytes = 0;
    const std::string seed = std::to_string(c.seed);
    char head[256];
    const int size = std::snprintf(head, sizeof head,
                                   "POST /v1/completions HTTP/1.1\r\nHost: load\r\nContent-Type: application/json\r\n"
                                   "Content-Length: %zu\r\n\r\n",
                                   before_.size() + seed.size() + after_.size());
    const std::string message = std::string(head, static_cast<size_t>(size)) + before_ + seed + after_;
    note(c, kSent, due);
    // A request fits the socket's buffer, which is empty.
    if (::send(c.socket, message.data(), message.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(message.size())) {
      fail("cannot send:", strerror(errno));
    }
  }

  void receive(size_t index) {
    Connection& c = connections_[index];
    const ssize_t size = recv(c.socket, buffer_, sizeof buffer_, 0);
    const uint64_t now = clock_ns();
    if (size <= 0) fail("the server closed a connection");
    if (!c.busy) fail("an answer to nothing:", {buffer_, static_cast<size_t>(size)});
    c.received.append(buffer_, static_cast<size_t>(size));
    if (!parse(c, now)) return;
    note(c, kEnd, now);
    c.busy = c.in_body = false;
    free_.push_back(index);
  }

  // Whether the answer is whole.
  bool parse(Connection& c, uint64_t now) {
    std::string_view rest = c.received;
    const bool whole = (c.in_body || parse_head(c, rest)) && parse_body(c, rest, now);
    c.received.erase(0, c.received.size() - rest.size());
    return whole;
  }

  bool parse_head(Connection& c, std::string_view& rest) {
    const size_t size = rest.find("\r\n\r\n");
    if (size == std::string_view::npos) return false;
    const std::string_view head = rest.substr(0, size + 2);
    if (!head.starts_with("HTTP/1.1 200 ")) {
      if (++refused_ == 1) std::fprintf(stderr, "load_client: %.*s\n", static_cast<int>(rest.size()), rest.data());
    }
    constexpr std::string_view kLength = "\r\ncontent-length: ";
    const size_t length = head.find(kLength);
    c.chunked = length == std::string_view::npos;
    c.left = c.chunked ? 0 : std::strtoul(head.data() + length + kLength.size(), nullptr, 10);
    c.in_body = true;
    rest.remove_prefix(size + 4);
    return true;
  }

  bool parse_body(Connection& c, std::string_view& rest, uint64_t now) {
    if (!c.chunked) {
      if (rest.size() < c.left) return false;
      c.bytes = static_cast<uint32_t>(c.left);
      rest.remove_prefix(c.left);
      return true;
    }
    for (;;) {
      if (c.left > 2) {
        const size_t here = std::min(rest.size(), c.left - 2);
        c.event.append(rest.substr(0, here));
        rest.remove_prefix(here);
        c.left -= here;
        if (c.left > 2) return false;
      }
      if (rest.size() < c.left) return false;
      rest.remove_prefix(c.left);
      c.left = 0;
      take_events(c, now);
      const size_t line = rest.find("\r\n");
      if (line == std::string_view::npos) return false;
      const size_t size = std::strtoul(rest.data(), nullptr, 16);
      if (size == 0 && rest.size() < line + 4) return false;
      rest.remove_prefix(size == 0 ? line + 4 : line + 2);
      if (size == 0) return true;
      c.left = size + 2;
    }
  }

  void take_events(Connection& c, uint64_t now) {
    constexpr std::string_view kText = "\"text\":\"";
    for (size_t end; (end = c.event.find("\n\n")) != std::string::npos; c.event.erase(0, end + 2)) {
      const std::string_view event = std::string_view(c.event).substr(0, end);
      if (event.find("\"error\"") != std::string_view::npos) ++refused_;
      size_t at = event.find(kText);
      if (at == std::string_view::npos) continue;
      const uint32_t before = c.bytes;
      for (at += kText.size(); event[at] != '"'; ++at) {
        at += event[at] == '\\' ? 1 : 0;
        ++c.bytes;
      }
      if (c.bytes > before) note(c, What::kText, now);
    }
  }

  void note(const Connection& c, What what, uint64_t ns) { moments_.push_back({c.seed, c.bytes, what, ns}); }

  void flush() {
    if (std::fwrite(moments_.data(), sizeof(Moment), moments_.size(), log_) != moments_.size()) fail("cannot write");
  }

  FILE* log_;
  int epoll_;
  std::string before_, after_;
  std::vector<Connection> connections_ = {};
  std::vector<size_t> free_ = {};
  std::vector<Moment> moments_ = {};
  uint64_t sent_ = 0, refused_ = 0;
  char buffer_[1 << 16];
};

std::string contents(const char* path) {
  FILE* file = std::fopen(path, "rb");
  if (file == nullptr) fail("cannot open:", path);
  std::string text;
  char buffer[4096];
  for (size_t size; (size = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, size);
  std::fclose(file);
  return text;
}

}  // namespace

int main(int count, char** given) {
  if (count != 8) fail("ADDRESS PORT[,PORT...] REQUEST CONNECTIONS RATE SECONDS LOG");
  FILE* log = std::fopen(given[7], "wb");
  if (log == nullptr) fail("cannot open:", given[7]);
  std::vector<uint16_t> ports;
  for (char* at = given[2]; *at != '\0'; at += *at == ',' ? 1 : 0) {
    ports.push_back(static_cast<uint16_t>(std::strtoul(at, &at, 10)));
  }
  Client client(contents(given[3]), log);
  const int connections = std::atoi(given[4]);
  for (int i = 0; i < connections; ++i) client.connect(given[1], ports[static_cast<size_t>(i) % ports.size()]);
  client.run(std::atof(given[5]), std::atof(given[6]));
  return std::fclose(log) == 0 ? 0 : 1;
}
