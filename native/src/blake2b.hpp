// BLAKE2b with a key (RFC 7693), for signatures of 16 bytes. The tests compare it with Python's.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

const size_t signature_bytes = 16;
const size_t key_bytes = 16;

struct Signature {
  uint8_t bytes[signature_bytes];
  bool operator== (const Signature &other) const {
    return !std::memcmp (bytes, other.bytes, signature_bytes);
  }
};

class Blake2b {
public:
  explicit Blake2b (const uint8_t *key) {
    std::memcpy (state, initial, sizeof state);
    state[0] ^= 0x01010000 ^ (key_bytes << 8) ^ signature_bytes;
    std::memcpy (block, key, key_bytes); // the first block is the key and zeros
    filled = block_bytes;
  }

  void update (const void *data, size_t size) {
    const uint8_t *from = static_cast<const uint8_t *> (data);
    while (size) {
      if (filled == block_bytes) // the last block waits for `finish`
        compress (block_bytes, false);
      const size_t part = size < block_bytes - filled ? size : block_bytes - filled;
      std::memcpy (block + filled, from, part);
      filled += part, from += part, size -= part;
    }
  }

  Signature finish () {
    std::memset (block + filled, 0, block_bytes - filled);
    compress (filled, true);
    Signature result;
    std::memcpy (result.bytes, state, signature_bytes);
    return result;
  }

private:
  static constexpr size_t block_bytes = 128;
  static constexpr uint64_t initial[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                                          0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
                                          0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
  static constexpr uint8_t order[10][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                            {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                            {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                            {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                            {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                            {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                            {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                            {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                            {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                            {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

  static uint64_t rotated (uint64_t word, int by) { return word >> by | word << (64 - by); }

  static void mix (uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
    v[a] += v[b] + x, v[d] = rotated (v[d] ^ v[a], 32);
    v[c] += v[d], v[b] = rotated (v[b] ^ v[c], 24);
    v[a] += v[b] + y, v[d] = rotated (v[d] ^ v[a], 16);
    v[c] += v[d], v[b] = rotated (v[b] ^ v[c], 63);
  }

  void compress (size_t new_bytes, bool is_last) {
    uint64_t words[16], v[16];
    std::memcpy (words, block, sizeof words); // little-endian machines only, as mallob-py
    total += new_bytes;
    std::memcpy (v, state, sizeof state);
    std::memcpy (v + 8, initial, sizeof initial);
    v[12] ^= total;
    if (is_last)
      v[14] = ~v[14];
    for (int round = 0; round < 12; round++) {
      const uint8_t *o = order[round % 10];
      for (int i = 0; i < 4; i++)
        mix (v, i, i + 4, i + 8, i + 12, words[o[2 * i]], words[o[2 * i + 1]]);
      for (int i = 0; i < 4; i++)
        mix (v, i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12, words[o[2 * i + 8]], words[o[2 * i + 9]]);
    }
    for (int i = 0; i < 8; i++)
      state[i] ^= v[i] ^ v[i + 8];
    filled = 0;
  }

  uint64_t state[8], total = 0;
  uint8_t block[block_bytes] = {};
  size_t filled;
};
