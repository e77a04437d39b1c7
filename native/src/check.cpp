// mallob-check: an independent checker of what one solver derives, in a process of its own.
//
//   mallob-check follow FD < STEPS > VERDICT     checks a derivation while it is made
//   mallob-check read < KEY, FORMULA             reads DIMACS and signs its literals
//
// `apps/mallob_sat/checked.py` starts it and says what is trusted; `recorder.cpp` in the solver's process
// writes most of the steps. A step that does not hold ends this process with one line for VERDICT. Nothing
// here is shared with a solver. Until its end the process has told only of what follows from the formula:
//
//   - the formula is the one that the client has signed;
//   - a clause is added if reverse unit propagation along its hints ends in a contradiction (LRAT without RAT),
//     or if it comes with the signature of a checker of the same job;
//   - clauses that leave (FD, a socket) are those of this memory, each with a signature;
//   - UNSAT is signed if the empty clause was added, or one of negated assumptions; a model if it satisfies
//     all clauses and assumptions.
//
// A signature is BLAKE2b under the job's key. That of a clause covers the formula's, so it is worth nothing
// for another formula.

#include "blake2b.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

const char verdict_unsat = 'U', verdict_model = 'M', verdict_error = 'E';
const int pipe_bytes = 1 << 20;
const size_t unsent_bytes_max = 1 << 20;
const size_t length_max = 255; // of shared clauses: lengths travel as bytes

void write_all (int fd, const std::string &text) {
  for (size_t done = 0; done < text.size ();) {
    const ssize_t written = write (fd, text.data () + done, text.size () - done);
    if (written < 0 && errno != EINTR)
      _exit (1);
    done += std::max<ssize_t> (written, 0);
  }
}

[[noreturn]] void refute (const std::string &reason) {
  write_all (STDOUT_FILENO, verdict_error + reason);
  _exit (1);
}

template <class T> void put (std::string &text, const T &value) {
  text.append (reinterpret_cast<const char *> (&value), sizeof value);
}

std::string text_of (const int *literals, size_t size) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t> (size, 10); i++)
    text += std::to_string (literals[i]) + " ";
  return text + (size > 10 ? "... 0" : "0");
}

/*------------------------------------------------------------------------*/

class Input {
public:
  // False at the end of the input.
  bool next (char &value) {
    if (at == size && !fill ())
      return false;
    value = buffer[at++];
    return true;
  }

  template <class T> T get () {
    T value;
    copy (&value, sizeof value);
    return value;
  }

  // Takes memory for what has come, whatever a step claims.
  template <class T> void get (std::vector<T> &values, uint64_t count) {
    values.clear ();
    while (const uint64_t part = std::min<uint64_t> (count, 1 << 16)) {
      values.resize (values.size () + part);
      copy (values.data () + values.size () - part, part * sizeof (T));
      count -= part;
    }
  }

private:
  void copy (void *to, size_t bytes) {
    for (char *next = static_cast<char *> (to); bytes;) {
      if (at == size && !fill ())
        refute ("the steps end in the midst of one");
      const size_t part = std::min (bytes, size - at);
      std::memcpy (next, buffer.data () + at, part);
      next += part, at += part, bytes -= part;
    }
  }

  bool fill () {
    ssize_t found;
    do
      found = read (STDIN_FILENO, buffer.data (), buffer.size ());
    while (found < 0 && errno == EINTR);
    at = 0;
    size = std::max<ssize_t> (found, 0);
    return size;
  }

  std::vector<char> buffer = std::vector<char> (pipe_bytes);
  size_t at = 0, size = 0;
};

/*------------------------------------------------------------------------*/

struct Clause {
  uint64_t id; // 0: this place is free
  const int *literals;
  uint32_t size;
  bool is_owned; // else part of the formula
};

// Clauses by their IDs: open addressing, at most half full.
class Store {
public:
  const Clause *find (uint64_t id) const {
    const Clause &place = table[place_of (id)];
    return id && place.id == id ? &place : nullptr;
  }

  bool add (uint64_t id, const int *literals, size_t size, bool is_owned) {
    if (!id || find (id))
      return false;
    if (++count * 2 > table.size ())
      grow ();
    if (is_owned) {
      int *copy = static_cast<int *> (std::malloc (std::max<size_t> (size, 1) * sizeof (int)));
      if (!copy)
        refute ("the checker is out of memory");
      std::copy_n (literals, size, copy);
      literals = copy;
    }
    table[place_of (id)] = {id, literals, static_cast<uint32_t> (size), is_owned};
    return true;
  }

  bool remove (uint64_t id) {
    if (!find (id))
      return false;
    size_t hole = place_of (id);
    if (table[hole].is_owned)
      std::free (const_cast<int *> (table[hole].literals));
    count--;
    // Move back what was put behind the hole only because its own place was taken.
    for (size_t next = (hole + 1) & mask; table[next].id; next = (next + 1) & mask)
      if (((next - first_place (table[next].id)) & mask) >= ((next - hole) & mask)) {
        table[hole] = table[next];
        hole = next;
      }
    table[hole].id = 0;
    return true;
  }

private:
  size_t first_place (uint64_t id) const { return (id * 0x9e3779b97f4a7c15 >> 20) & mask; }

  // Of the ID, or the free place where it is missing.
  size_t place_of (uint64_t id) const {
    size_t place = first_place (id);
    while (table[place].id && table[place].id != id)
      place = (place + 1) & mask;
    return place;
  }

  void grow () {
    std::vector<Clause> old (table.size () * 2);
    old.swap (table);
    mask = table.size () - 1;
    for (const Clause &clause : old)
      if (clause.id)
        table[place_of (clause.id)] = clause;
  }

  std::vector<Clause> table = std::vector<Clause> (1 << 16);
  size_t mask = table.size () - 1, count = 0;
};

/*------------------------------------------------------------------------*/

// Clauses on their way to the worker process. Never waits: what finds no room is dropped.
class Outlet {
public:
  explicit Outlet (int socket) : fd (socket) {}

  void send (const std::string &frame) {
    flush ();
    if (unsent.size () > unsent_bytes_max)
      return;
    put (unsent, static_cast<uint32_t> (frame.size ()));
    unsent += frame;
    flush ();
  }

private:
  void flush () {
    while (!unsent.empty ()) {
      const ssize_t sent = ::send (fd, unsent.data (), unsent.size (), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0)
        return;
      unsent.erase (0, sent);
    }
  }

  const int fd;
  std::string unsent;
};

/*------------------------------------------------------------------------*/

class Checker {
public:
  explicit Checker (int socket) : outlet (socket) {}

  void run () {
    input.get (key, key_bytes);
    wanted = input.get<Signature> ();
    for (char kind; input.next (kind);) {
      if (kind != 'L' && kind != 'E' && !is_loaded)
        refute ("a step before the end of the formula");
      switch (kind) {
      case 'L': load (); break;
      case 'E': end_load (); break;
      case 'D': derive (); break;
      case 'X': remove (); break;
      case 'I': import (); break;
      case 'S': share (); break;
      case 'U': conclude_unsat (); break;
      case 'M': conclude_model (); break;
      default: refute ("a step of unknown kind " + std::to_string (kind));
      }
    }
  }

private:
  void load () {
    if (is_loaded)
      refute ("more of the formula after its end");
    input.get (literals, input.get<uint64_t> ());
    formula.insert (formula.end (), literals.begin (), literals.end ());
  }

  void end_load () {
    input.get (assumptions, input.get<uint64_t> ());
    if (is_loaded || (!formula.empty () && formula.back ()))
      refute ("the formula ends twice, or in the midst of a clause");
    Blake2b of_literals (key.data ());
    of_literals.update (formula.data (), formula.size () * sizeof (int));
    const Signature inner = of_literals.finish ();
    Blake2b of_all (key.data ());
    of_all.update ("F", 1);
    of_all.update (inner.bytes, signature_bytes);
    of_all.update (assumptions.data (), assumptions.size () * sizeof (int));
    signature = of_all.finish ();
    if (!(signature == wanted))
      refute ("the formula is not the one that the job was given");
    is_loaded = true;
    int64_t largest = 0;
    for (const std::vector<int> *part : {&formula, &assumptions})
      for (int literal : *part)
        largest = std::max (largest, std::abs (static_cast<int64_t> (literal)));
    is_true.resize (2 * largest + 2);
    uint64_t id = 0;
    for (size_t first = 0, i = 0; i < formula.size (); i++)
      if (!formula[i]) {
        store.add (++id, &formula[first], i - first, false);
        has_empty |= i == first;
        first = i + 1;
      }
  }

  // Reads and checks the literals of a step.
  void get_literals (uint32_t size) {
    input.get (literals, size);
    for (int literal : literals)
      if (!literal || place (literal) >= is_true.size ())
        refute ("literal " + std::to_string (literal) + " is not of the formula");
  }

  void derive () {
    const uint64_t id = input.get<uint64_t> ();
    const uint32_t size = input.get<uint32_t> (), n_hints = input.get<uint32_t> ();
    get_literals (size);
    input.get (hints, n_hints);
    const std::string reason = gap ();
    if (!reason.empty ())
      refute ("clause " + std::to_string (id) + " (" + text_of (literals.data (), size) + "): " + reason);
    add (id);
  }

  // What keeps `literals` from following along `hints`; "": nothing.
  std::string gap () {
    if (!++now) { // all marks could be met again
      std::fill (is_true.begin (), is_true.end (), 0);
      now = 1;
    }
    for (int literal : literals) {
      if (is_true[place (literal)] == now)
        return ""; // a tautology
      is_true[place (-literal)] = now;
    }
    for (uint64_t hint : hints) {
      const Clause *clause = store.find (hint);
      if (!clause)
        return "hint " + std::to_string (hint) + " is no clause";
      int left = 0;
      for (uint32_t i = 0; i < clause->size; i++) {
        const int literal = clause->literals[i];
        if (is_true[place (-literal)] == now || literal == left)
          continue;
        if (left)
          return "hint " + std::to_string (hint) + " leaves two literals";
        left = literal;
      }
      if (!left)
        return "";
      if (is_true[place (left)] == now)
        return "hint " + std::to_string (hint) + " is true";
      is_true[place (left)] = now;
    }
    return "its hints lead to no contradiction";
  }

  void add (uint64_t id) {
    if (!store.add (id, literals.data (), literals.size (), true))
      refute ("clause " + std::to_string (id) + " is there already");
    has_empty |= literals.empty ();
  }

  void remove () {
    const uint64_t id = input.get<uint64_t> ();
    if (!store.remove (id))
      refute ("clause " + std::to_string (id) + ", which is to be deleted, is not there");
  }

  void import () {
    const uint64_t id = input.get<uint64_t> ();
    const uint32_t size = input.get<uint32_t> ();
    const Signature given = input.get<Signature> ();
    get_literals (size);
    if (!(given == signature_of (literals.data (), size)))
      refute ("clause " + text_of (literals.data (), size) + " of another worker has a wrong signature");
    add (id);
  }

  Signature signature_of (const int *first, size_t size) {
    sorted.assign (first, first + size);
    std::sort (sorted.begin (), sorted.end ());
    Blake2b hash (key.data ());
    hash.update ("C", 1);
    hash.update (signature.bytes, signature_bytes);
    hash.update (sorted.data (), size * sizeof (int));
    return hash.finish ();
  }

  // A frame as `ClausePipe` reads it. What was deleted meanwhile is left out.
  void share () {
    struct Choice {
      uint64_t id;
      uint64_t lbd;
    };
    std::vector<Choice> chosen;
    input.get (chosen, input.get<uint32_t> ());
    std::string lengths, lbds, all, signatures;
    uint32_t count = 0;
    for (const Choice &choice : chosen) {
      const Clause *clause = store.find (choice.id);
      if (!clause || !clause->size || clause->size > length_max)
        continue;
      count++;
      lengths += static_cast<char> (clause->size);
      lbds += static_cast<char> (std::min<uint64_t> (choice.lbd, length_max));
      for (uint32_t i = 0; i < clause->size; i++)
        put (all, clause->literals[i]);
      put (signatures, signature_of (clause->literals, clause->size));
    }
    std::string frame;
    put (frame, count);
    outlet.send (frame + lengths + lbds + all + signatures);
  }

  void conclude_unsat () {
    const uint64_t id = input.get<uint64_t> ();
    std::vector<int> core;
    if (!has_empty) {
      const Clause *clause = store.find (id);
      if (!clause)
        refute ("UNSATISFIABLE is claimed without an empty clause");
      for (uint32_t i = 0; i < clause->size; i++) {
        core.push_back (-clause->literals[i]);
        if (std::find (assumptions.begin (), assumptions.end (), core.back ()) == assumptions.end ())
          refute ("UNSATISFIABLE is claimed because of " + std::to_string (core.back ()) +
                  ", which is not assumed");
      }
      std::sort (core.begin (), core.end ());
    }
    tell (verdict_unsat, 20, core);
  }

  void conclude_model () {
    input.get (literals, input.get<uint32_t> ());
    std::vector<int> model (is_true.size () / 2, 0);
    for (size_t i = 0; i < literals.size (); i++) {
      if (std::abs (static_cast<int64_t> (literals[i])) != static_cast<int64_t> (i) + 1)
        refute ("literal " + std::to_string (literals[i]) + " of the model is at the wrong place");
      if (i + 1 < model.size ())
        model[i + 1] = literals[i];
    }
    bool is_satisfied = false;
    size_t number = 1;
    for (int literal : formula)
      if (literal)
        is_satisfied |= model[std::abs (literal)] == literal;
      else if (!is_satisfied)
        refute ("the model leaves clause " + std::to_string (number) + " false");
      else
        is_satisfied = false, number++;
    for (int literal : assumptions)
      if (model[std::abs (literal)] != literal)
        refute ("the model leaves assumption " + std::to_string (literal) + " false");
    tell (verdict_model, 10, literals);
  }

  // A signed answer: its signature, and the core if it is UNSAT.
  void tell (char verdict, int32_t code, const std::vector<int> &answer) {
    Blake2b hash (key.data ());
    hash.update ("R", 1);
    hash.update (signature.bytes, signature_bytes);
    hash.update (&code, sizeof code);
    hash.update (answer.data (), answer.size () * sizeof (int));
    std::string text (1, verdict);
    put (text, hash.finish ());
    if (verdict == verdict_unsat)
      text.append (reinterpret_cast<const char *> (answer.data ()), answer.size () * sizeof (int));
    write_all (STDOUT_FILENO, text);
    _exit (0);
  }

  static size_t place (int literal) {
    return literal < 0 ? 2 * (0 - static_cast<size_t> (static_cast<int64_t> (literal))) : 2 * size_t (literal) + 1;
  }

  Input input;
  Outlet outlet;
  std::vector<uint8_t> key;
  Signature wanted{}, signature{};
  bool is_loaded = false, has_empty = false;
  std::vector<int> formula, assumptions;
  Store store;
  std::vector<uint32_t> is_true; // by literal: `now` if it is true in this step
  uint32_t now = 0;
  std::vector<int> literals, sorted; // of the step at hand
  std::vector<uint64_t> hints;
};

/*------------------------------------------------------------------------*/

// Reads a formula word by word, and signs its literals. Another reader must have found the same ones.
class Reader {
public:
  void run () {
    std::vector<uint8_t> key;
    input.get (key, key_bytes);
    Blake2b hash (key.data ());
    std::string word;
    uint64_t n_words = 0, n_clauses = 0;
    int last = 0;
    while (next_word (word) && word != "%") {
      n_words++;
      if (n_words == 1 || n_words == 2 || n_words == 3) {
        if (n_words < 3 && word != (n_words == 1 ? "p" : "cnf"))
          refute ("'p cnf' is expected, found " + word.substr (0, 20));
        continue; // the number of variables
      }
      if (word[0] == 'x')
        refute ("it has XORs (lines with x), which jobs with checked answers do not take; write clauses");
      char *end;
      const long value = std::strtol (word.c_str (), &end, 10);
      if (*end || value > 2147483646 || value < -2147483646)
        refute ("not a literal: " + word.substr (0, 20));
      if (n_words == 4) {
        n_clauses = value;
        continue;
      }
      last = static_cast<int> (value);
      hash.update (&last, sizeof last);
      n_clauses -= !last;
    }
    if (n_words < 4 || last || n_clauses)
      refute ("it does not hold the clauses that its header declares");
    std::string text (1, 'F');
    put (text, hash.finish ());
    write_all (STDOUT_FILENO, text);
    for (char rest; input.next (rest);) {
    }
  }

private:
  bool next_word (std::string &word) {
    char c;
    word.clear ();
    while (input.next (c)) {
      if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        is_line_begin |= c == '\n';
        if (!word.empty ())
          return true;
      } else if (c == 'c' && is_line_begin && word.empty ()) {
        while (input.next (c) && c != '\n') {
        }
      } else {
        is_line_begin = false;
        word += c;
      }
    }
    return !word.empty ();
  }

  Input input;
  bool is_line_begin = true;
};

} // namespace

int main (int argc, char **argv) try {
  const std::string mode = argc > 1 ? argv[1] : "";
  fcntl (STDIN_FILENO, F_SETPIPE_SZ, pipe_bytes); // less is granted where pipes are scarce
  if (mode == "follow" && argc == 3)
    Checker (std::atoi (argv[2])).run ();
  else if (mode == "read" && argc == 2)
    Reader ().run ();
  else {
    std::fputs ("usage: mallob-check follow FD | mallob-check read\n", stderr);
    return 2;
  }
  return 0;
} catch (const std::bad_alloc &) {
  refute ("the checker is out of memory");
}
