#include "recorder.hpp"

#include "exchange.hpp"

#include <algorithm>
#include <cerrno>

#include <unistd.h>

namespace CaDiCaL {

static const size_t buffer_bytes = 1 << 16;
static const size_t signature_bytes = 16;

typedef std::lock_guard<std::mutex> Lock;

void Recorder::put (const void *data, size_t size) { buffer.append (static_cast<const char *> (data), size); }

void Recorder::write_out () {
  for (size_t done = 0; done < buffer.size () && !broken;) {
    const ssize_t written = ::write (fd, buffer.data () + done, buffer.size () - done);
    if (written >= 0)
      done += written;
    else if (errno != EINTR)
      broken = true;
  }
  buffer.clear ();
}

void Recorder::derive (uint64_t id, const std::vector<int> &clause, const std::vector<ClauseId> &hints) {
  const Lock lock (mutex);
  put ('D');
  put (id);
  put (static_cast<uint32_t> (clause.size ()));
  put (static_cast<uint32_t> (hints.size ()));
  put (clause.data (), clause.size () * sizeof (int));
  put (hints.data (), hints.size () * sizeof (ClauseId));
  if (buffer.size () >= buffer_bytes)
    write_out ();
}

void Recorder::add_derived_clause (ClauseId id, bool,
#if CADICAL_RELEASE >= 300
                                   int, // a witness: only with `factor`, and refuted by the checker
#endif
                                   const std::vector<int> &clause, const std::vector<ClauseId> &hints) {
  derive (id, clause, hints);
  exchange.derived (clause, id);
}

void Recorder::add_assumption_clause (ClauseId id, const std::vector<int> &clause,
                                      const std::vector<ClauseId> &hints) {
  derive (id, clause, hints);
  failed_id = id;
}

void Recorder::delete_clause (ClauseId id, bool, const std::vector<int> &) {
  const Lock lock (mutex);
  put ('X');
  put (static_cast<uint64_t> (id));
}

void Recorder::import (uint64_t id, const int *first, const int *last, const int *signature) {
  const Lock lock (mutex);
  put ('I');
  put (id);
  put (static_cast<uint32_t> (last - first));
  put (signature, signature_bytes);
  put (first, (last - first) * sizeof (int));
}

void Recorder::load (const int *literals, uint64_t n_literals) {
  const Lock lock (mutex);
  for (uint64_t done = 0, part; done < n_literals; done += part) {
    part = std::min<uint64_t> (n_literals - done, buffer_bytes);
    put ('L');
    put (part);
    put (literals + done, part * sizeof (int));
    write_out ();
  }
}

void Recorder::end_load (const int *assumptions, uint64_t n_assumptions) {
  const Lock lock (mutex);
  put ('E');
  put (n_assumptions);
  put (assumptions, n_assumptions * sizeof (int));
}

void Recorder::share (const std::vector<int64_t> &ids, const std::vector<int> &lbds) {
  const Lock lock (mutex);
  put ('S');
  put (static_cast<uint32_t> (ids.size ()));
  for (size_t i = 0; i < ids.size (); i++) {
    put (ids[i]);
    put (static_cast<int64_t> (lbds[i]));
  }
  write_out ();
}

void Recorder::flush () {
  const Lock lock (mutex);
  write_out ();
}

} // namespace CaDiCaL
