// Event streams whose tokens the library sends, all that have come in one call: the interpreter takes longer over a
// token than the kernel does over sending it, most of all where it finds nothing of a stream in the caches.
#pragma once
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dp {

// Used by one thread, which also closes the sockets.
class Spouts {
 public:
  // `text` is the JSON of what a token adds to any text; tokens of which that is not said are not sent.
  void learn(uint32_t token, std::string_view text) {
    if (token >= texts_.size()) texts_.resize(token + 1);
    texts_[token] = text;
  }

  // The tokens of `tag` go to `socket`: each a chunk of HTTP/1.1 with its text between `before` and `after`. The token
  // before them came at `last`, in seconds.
  void open(uint64_t tag, int socket, std::string_view before, std::string_view after, double last) {
    spouts_[tag] = {socket, std::string(before), std::string(after), last};
  }

  // Returns how many tokens were sent, and when the last came.
  uint32_t close(uint64_t tag, double* last) {
    const auto found = spouts_.find(tag);
    *last = found->second.last;
    const uint32_t sent = found->second.sent;
    spouts_.erase(found);
    return sent;
  }

  // Sends tokens, which came at `now`, in order. `unsent[i]` is how many bytes of a chunk its socket had no room for;
  // -1: the token is not sent. After either nothing of its tag is, until it is opened again. `gaps` counts the seconds
  // between tokens, at most each of `bounds` and above the one before, those above all, and has their sum behind.
  // Returns whether all were sent.
  bool pour(const uint64_t* tags, const int32_t* tokens, size_t count, double now, const double* bounds,
            size_t bound_count, double* gaps, int32_t* unsent) {
    bool all = true;
    for (size_t i = 0; i < count; ++i) {
      const auto found = spouts_.find(tags[i]);
      unsent[i] = found == spouts_.end() || found->second.stopped ? -1 : send(found->second, tokens[i]);
      if (unsent[i] != 0) all = false;
      if (unsent[i] < 0) continue;
      const double gap = now - found->second.last;
      ++gaps[std::lower_bound(bounds, bounds + bound_count, gap) - bounds];
      gaps[bound_count + 1] += gap;
      found->second.last = now;
    }
    return all;
  }

 private:
  struct Spout {
    int socket;
    std::string before, after;
    double last;
    uint32_t sent = 0;
    bool stopped = false;
  };

  int32_t send(Spout& spout, int32_t token) {
    const auto at = static_cast<uint32_t>(token);
    spout.stopped = true;
    if (at >= texts_.size() || texts_[at].empty()) return -1;
    const size_t size = spout.before.size() + texts_[at].size() + spout.after.size();
    char digits[2 * sizeof size];
    chunk_.assign(digits, std::to_chars(digits, digits + sizeof digits, size, 16).ptr);
    chunk_.append("\r\n").append(spout.before).append(texts_[at]).append(spout.after).append("\r\n");
    const ssize_t sent = ::send(spout.socket, chunk_.data(), chunk_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent <= 0) return -1;
    ++spout.sent;
    spout.stopped = static_cast<size_t>(sent) < chunk_.size();
    return static_cast<int32_t>(chunk_.size() - static_cast<size_t>(sent));
  }

  std::unordered_map<uint64_t, Spout> spouts_ = {};
  std::vector<std::string> texts_ = {};
  std::string chunk_ = {};
};

}  // namespace dp
