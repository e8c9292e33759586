/* The protocol between workers and the server, for Spin. README.md says what is modelled and what
 * is not; `run` checks it.
 *
 * A process is a loop over its steps. A step is one d_step: an access to what other processes
 * write, and what the process does alone until its next access. `..._at` says which step is next;
 * the comment before a step names the functions of the code that it stands for. Where a step has
 * two accesses, a comment says why no other process can see a difference.
 * SPDX-License-Identifier: MIT
 */

/* --- the bounds --- */

#ifndef WORKERS
#define WORKERS 2 /* at most 2 */
#endif
#ifndef SLOTS
#define SLOTS 1 /* of each page; at most 2 */
#endif
#ifndef SCOPES_0
#define SCOPES_0 2 /* that the first worker opens, at most */
#endif
#ifndef SCOPES_1
#define SCOPES_1 1 /* that the second worker opens, at most */
#endif
#define SCOPES 3 /* no fewer than each of both */
#define SCOPES_OF(w) (w == 0 -> SCOPES_0 : SCOPES_1)
#ifndef RENEWALS_0
#define RENEWALS_0 0 /* by the first worker, at most */
#endif
#ifndef RENEWALS_1
#define RENEWALS_1 0 /* by the second worker, at most */
#endif
#define RENEWALS_OF(w) (w == 0 -> RENEWALS_0 : RENEWALS_1)
#ifndef LAST
#define LAST 2 /* the clock shows 0, then 1, up to LAST */
#endif
#ifndef FULLS
#define FULLS 0 /* how often a message of the first worker finds the pipe full */
#endif
#ifndef ENDS
#define ENDS 1 /* how often a server ends and the next one starts */
#endif

/* --- the values: slot_word, kWakeAlways, kWakeNever ---
 * code: common/scope_page.hpp is_open 370f5a6a
 * code: common/scope_page.hpp is_paused 2a66ddf6
 * code: common/scope_page.hpp expired 5e9744d3
 * code: common/scope_page.hpp is_expired c36bc88b */

/* Bytes, not the values of the code: only their order matters, and what follows from it. */
#define FREE 0                                  /* 1 to LAST: open, with this deadline */
#define EXPIRED(deadline) ((deadline) + LAST)   /* -D */
#define JUDGED 10
#define LATE 11                                 /* kReleasedLate */
#define IS_OPEN(value) ((value) > 0 && (value) <= LAST)
#define IS_EXPIRED(value) ((value) > LAST && (value) < JUDGED)

#define ALWAYS 12
#define NEVER 0 /* as on the blank status page that a client has made: no deadline is earlier */

#define NONE 15 /* no scope, no incarnation */
#define SLOT(w, s) ((w) * 2 + (s))
#define ALL_SLOTS 4
#define ALL_SCOPES (2 * SCOPES)

/* --- what both sides share --- */

/* The status page. It exists from the beginning, all zeroes, because the side that starts first
 * makes it. */
byte next_wake = 0;   /* Board::next_wake */
byte incarnation = 0; /* Board::incarnation */

bool is_page[2];          /* the page has its name in `scopes/` */
byte slot_count[2];       /* PageHeader::slots */
byte word[ALL_SLOTS];     /* Slot::deadline */
byte scope_in[ALL_SLOTS]; /* the slot's other fields and its name: whose they are */

/* A named pipe has a number; 0 is none. */
byte pipe_at_path = 0; /* the pipe that has its name in the runtime directory */
byte pipe_read = 0;    /* the pipe that a server has open */
bool message[2];       /* in that pipe, from each worker; a second message adds nothing */
bool is_full;          /* other lines have filled that pipe since the server read it */
byte fulls = FULLS;    /* how often the pipe is still full of other lines */
#define IS_MESSAGE (message[0] || message[1] || is_full)

/* Board::scans counts the scans, and each worker compares two of its values: */
bool is_same_scan[2]; /* none has begun since the worker read it in wake() */
bool is_woken[2];     /* nor since the reading that is in OwnPage::woken_in_ */

bool is_recorded[ALL_SCOPES]; /* a kill file has the verdict on this scope */
bool is_ended[ALL_SCOPES];    /* it has the outcome, too */

byte now = 0; /* CLOCK_MONOTONIC */

/* The scopes that each worker is in. For the check, too: a scope is over if it is not here. */
byte mine[ALL_SLOTS] = NONE;
#define IS_LEFT(i) (mine[i] != scope_in[i])

/* A scope that is over leaves nothing in a kill file, nor in the fields of its slot. */
inline free(at) {
  word[at] = FREE;
  is_recorded[scope_in[at]] = false;
  is_ended[scope_in[at]] = false;
  scope_in[at] = 0
}

/* --- the properties --- */

#define HOLDS(property, condition) assert(property == 0 || (condition))
/* Whenever all processes wait: */
#define P_MISSED      1 /* no deadline has passed without a verdict */
#define P_UNFINISHED  2 /* no slot waits for the server: every kill has ended */
#define P_OPEN        3 /* no scope is open that its worker has left */
/* At all times: */
#define P_EARLY       4 /* a verdict is given after the deadline only */
#define P_TWICE       5 /* no scope gets a second verdict after one that was recorded */
#define P_AFTER       6 /* no scope is judged or killed after a release that came first */
#define P_UNEXPLAINED 7 /* a release that lost came after a verdict */

/* --- what has to happen somewhere in the search, or the search shows nothing --- */

/* `run` wants all of them. With WITNESS set to one of these numbers the search ends there, with a
 * trail. */
#ifdef WITNESS
#define REACHED(number) assert(number != WITNESS)
#else
#define REACHED(number) \
  c_code { static char is_said; if (!is_said) { is_said = 1; printf("reached %d\n", number); } }
#endif
#define W_KILL            1  /* a worker is killed */
#define W_RELEASE_WINS    2  /* a release comes before the verdict on a deadline that has passed */
#define W_RELEASE_LOSES   3  /* a release comes after the verdict and before the end of the kill */
#define W_LEFT_JUDGED     4  /* a worker that is alive after its kill leaves the scope */
#define W_RENEWED         5  /* a scope is renewed */
#define W_VERDICT_FAILS   6  /* the verdict fails: the slot has another deadline by now */
#define W_REUSE           7  /* a slot is used for a second scope */
#define W_CANCELLED       8  /* a late release cancels the kill before the signal */
#define W_FOUND_FIRST     9  /* the first server finds a scope that is open already */
#define W_ADOPTED         10 /* the next server finds a scope that is open already */
#define W_TAKEN_BACK      11 /* a verdict without a kill file is taken back */
#define W_LEFT_TAKEN_BACK 12 /* a late release finds the verdict taken back */
#define W_RESUMED         13 /* a server finishes the kill of an earlier one */
#define W_WOKEN_EARLIER   14 /* a worker wakes a server that sleeps until a later deadline */
#define W_BY_ITSELF       15 /* a worker writes no message, because the server wakes in time */
#define W_FULL            16 /* the pipe is full */
#define W_AFTER_FULL      17 /* a server reads the pages only because its pipe was full */
#define W_GONE_BETWEEN    18 /* a server ends between a client's open() and write() */
#define W_KNOWN_DEAD      19 /* a worker writes nothing, because no server was there the last time */
#define W_TRIED_AGAIN     20 /* a worker tries again, because the incarnation has changed */
#define W_STOPPED         21 /* a server is stopped in order */
#define W_BY_MESSAGE      22 /* a server finds a page by its message, not in the folder */
#define W_ALREADY_WOKEN   23 /* a worker writes no message, because one of its own waits for a scan */

/* --- the faults: `run` sets one of them at a time --- */

#ifdef FAULT_RELAXED_DEADLINE /* a later load may come before the store of set_deadline() */
#define STORE_DEADLINE(w, s, value) buffered_at[w] = 1 + SLOT(w, s); buffered[w] = value
#define DRAINED(w) (buffered_at[w] == 0)
byte buffered_at[2]; /* 0: nothing, else 1 + the slot */
byte buffered[2];
#else
#define STORE_DEADLINE(w, s, value) word[SLOT(w, s)] = value
#define DRAINED(w) true
#endif

#ifdef FAULT_RELAXED_ALWAYS /* a later load may come before the store of announce_scan() */
#define STORE_ALWAYS server_buffered = ALWAYS
#define SERVER_DRAINED (server_buffered == NONE)
byte server_buffered = NONE;
#else
#define STORE_ALWAYS next_wake = ALWAYS
#define SERVER_DRAINED true
#endif

#ifdef FAULT_ALWAYS_AFTER_READING /* announce_scan() comes after the deadlines were read */
#define ALWAYS_BEFORE
#define ALWAYS_AFTER STORE_ALWAYS;
#else
#define ALWAYS_BEFORE STORE_ALWAYS;
#define ALWAYS_AFTER
#endif

#ifdef FAULT_NO_MESSAGE /* a worker does not wake a server that sleeps until a later deadline */
#define MUST_WAKE(deadline) (next_wake == ALWAYS)
#else
#define MUST_WAKE(deadline) ((deadline) < next_wake)
#endif

#ifdef FAULT_SCAN_READ_AFTER /* the number of scans is read after the message was written */
#define WOKEN(at, on_told) at = NOTE_WOKEN
#define NOTE_WOKEN_STEP(at, on_told) :: d_step { at == NOTE_WOKEN -> is_woken[w] = true; on_told }
#else
#define WOKEN(at, on_told) is_woken[w] = is_same_scan[w]; is_same_scan[w] = false; on_told
#define NOTE_WOKEN_STEP(at, on_told)
#endif

#ifdef FAULT_DEAD_READ_AFTER /* the incarnation is read after the write has failed */
#define READ_BEFORE
#define READ_AFTER found = incarnation;
#else
#define READ_BEFORE found = incarnation;
#define READ_AFTER
#endif

#ifdef FAULT_FULL_NOT_READ /* a server that has had a full pipe does not read the pages */
#define WAS_FULL false
#else
#define WAS_FULL is_full
#endif

#ifdef FAULT_COUNT_LATE /* PageHeader::slots grows after the worker has looked at next_wake */
#define COUNT_BEFORE
#define COUNT_AFTER worker_at[w] = (worker_at[w] == IDLE -> GROW_COUNT : worker_at[w]);
#else
#define COUNT_BEFORE grow_slot_count();
#define COUNT_AFTER slot = 0;
#endif

#ifdef FAULT_REUSE_WHILE_EXPIRED /* a slot is used again before the server has acknowledged it */
#define IS_FREE(w, s) (s < SLOTS && mine[SLOT(w, s)] == NONE)
#else
#define IS_FREE(w, s) (s < SLOTS && word[SLOT(w, s)] == FREE) /* SlotHandle::is_free() */
#endif

#ifdef FAULT_VERDICT_BY_STORE /* try_expire() is a store */
#define EXPIRES(w, s) true
#else
#define EXPIRES(w, s) (word[SLOT(w, s)] == due[s])
#endif

#ifdef FAULT_EARLY /* a scan judges by a time that has not come yet */
#define JUDGES_BY (woke + 1)
#else
#define JUDGES_BY woke
#endif

#ifdef FAULT_JUDGED_FREED /* the end of a kill frees the slot of a worker that is still in it */
#define AFTER_KILL FREE
#else
#define AFTER_KILL JUDGED
#endif

#ifdef FAULT_JUDGED_TWICE /* the next server takes back a verdict that is in a kill file, too */
#define IS_TAKEN_BACK(scope) true
#else
#define IS_TAKEN_BACK(scope) (!is_recorded[scope])
#endif

/* --- the client --- */

#define MAKE_PAGE 1 /* a worker starts here */
#define IDLE 0      /* in its own code */
byte worker_at[2] = MAKE_PAGE;

byte dead[2] = NONE; /* OwnPage::dead_incarnation_ */

/* Steps of a worker. */
#define READ_INCARNATION 2
#define OPEN_PIPE 3
#define WRITE 4
#define NOTE_DEAD 5
#define NOTE_WOKEN 13
#define READ_SCANS 14

#ifdef FAULT_DEAD_READ_AFTER
#define HAS_NOTE_DEAD /* otherwise no other thread looks at `dead`, and it is no step */
#endif

/* OwnPage::send_wake_up() and send_line(), as steps of a thread that is `at` one of them.
 * code: timer_client/client/page/own_page.cpp OwnPage::send_wake_up 8bdd8515
 * code: timer_client/client/pipe/pipe_line.cpp send_line 8f03d886
 * code: timer_client/client/pipe/pipe_line.cpp open_pipe 11369867
 * code: timer_client/client/pipe/pipe_line.cpp meaning_of 0cc3cee8 */
#ifdef HAS_NOTE_DEAD
#define FAIL(at, on_no_reader) at = NOTE_DEAD
#define NOTE_DEAD_STEP(at, on_no_reader) \
  :: d_step { at == NOTE_DEAD -> READ_AFTER dead[w] = found; found = 0; on_no_reader }
#else
#define FAIL(at, on_no_reader) dead[w] = found; found = 0; on_no_reader
#define NOTE_DEAD_STEP(at, on_no_reader)
#endif
#define TELL_SERVER(at, on_told) \
  :: d_step { at == READ_INCARNATION -> \
       READ_BEFORE \
       at = OPEN_PIPE } \
  :: d_step { at == OPEN_PIPE -> /* open() */ \
       if \
       :: pipe_at_path != 0 && pipe_read == pipe_at_path -> fd = pipe_at_path; at = WRITE \
       :: else -> FAIL(at, on_told) \
       fi } \
  :: d_step { at == WRITE -> /* write() */ \
       if \
       :: pipe_read != fd -> REACHED(W_GONE_BETWEEN); FAIL(at, on_told) \
       :: else -> message[w] = true; found = 0; WOKEN(at, on_told) \
       fi; \
       fd = 0 } \
  :: d_step { at == WRITE && w == 0 && pipe_read == fd && fulls > 0 -> \
       fulls--; is_full = true; REACHED(W_FULL); found = 0; fd = 0; on_told } \
  NOTE_WOKEN_STEP(at, on_told) \
  NOTE_DEAD_STEP(at, on_told)

#define READ_NEXT_WAKE 7
#define READ_DEAD 9
#define STORE_FREE 10
#define RELEASE_LATE 11
#define GROW_COUNT 12

inline grow_slot_count() {
  if
  :: slot_count[w] <= slot -> slot_count[w] = slot + 1
  :: else
  fi
}

/* Nothing of what comes before the deadline can be seen while the slot is free, but for the number
 * of slots, which says as much as it did as long as the slot is free. So it is one step.
 * code: timer_client/client/page/own_page.cpp OwnPage::claim 50e458a6
 * code: timer_client/client/page/own_page.cpp OwnPage::slot_for 36a0b8fa
 * code: timer_client/client/page/own_page.cpp OwnPage::unused_slot 3ce9f942
 * code: timer_client/client/page/own_page.cpp OwnPage::new_slot dc40e893
 * code: timer_client/client/page/page_scope.hpp claim_without_lock 1ce475ef
 * code: timer_client/client/page/thread_slots.hpp is_free 87bebbcd
 * code: timer_client/client/page/thread_slots.cpp ThreadSlots::next_idle 47dad1aa
 * code: timer_client/client/page/thread_slots.cpp ThreadSlots::bind f31430f6
 * code: common/wake_protocol.hpp begin_writing_slot 3ca8d88c
 * code: timer_client/client/page/page_scope.hpp deadline_word 72658997
 * code: timer_client/client/page/page_scope.hpp open_scope_until 74f71d10
 * code: timer_client/client/page/page_scope.hpp open_scope_for 5d5bbaaa
 * code: timer_client/client/page/page_scope.hpp open_scope dc373fc1
 * code: common/wake_protocol.hpp set_deadline d55e4685 */
inline open_scope(the_deadline) {
  slot = (IS_FREE(w, 0) -> 0 : 1);
  if
  :: slot_count[w] > slot -> REACHED(W_REUSE)
  :: else
  fi;
  COUNT_BEFORE
  mine[SLOT(w, slot)] = w * SCOPES + opened;
  scope_in[SLOT(w, slot)] = w * SCOPES + opened;
  opened++;
  set_deadline(the_deadline)
}

inline set_deadline(the_deadline) {
  deadline = the_deadline;
  STORE_DEADLINE(w, slot, the_deadline);
  worker_at[w] = READ_NEXT_WAKE
}

inline leave() {
  mine[SLOT(w, slot)] = NONE;
  slot = 0;
  worker_at[w] = IDLE
}

/* release_scope(), try_release(): a look and an exchange, until the exchange succeeds or the word is
 * no longer open. Only the last round has an effect, so it is one step.
 * code: timer_client/client/page/page_scope.cpp release_scope 693c81e8
 * code: common/wake_protocol.hpp try_release 402006e2 */
inline release_scope(s) {
  slot = s;
  if
  :: IS_OPEN(word[SLOT(w, s)]) -> release()
  :: else -> worker_at[w] = RELEASE_LATE
  fi
}

inline release() {
#ifdef FAULT_RELEASE_BY_STORE /* the word is read, and freed by a store */
  worker_at[w] = STORE_FREE
#else
  free_by_release()
#endif
}

inline free_by_release() {
  if
  :: word[SLOT(w, slot)] <= now -> REACHED(W_RELEASE_WINS)
  :: else
  fi;
  HOLDS(P_AFTER, !is_recorded[mine[SLOT(w, slot)]]);
  free(SLOT(w, slot));
  leave()
}

/* renew_scope(), try_renew() (a): likewise.
 * code: timer_client/client/page/page_scope.hpp renew_scope 43df69ff
 * code: common/wake_protocol.hpp try_renew 1bd9d94f */
inline renew_scope(s) {
  renewed++;
  slot = s;
  if
  :: IS_OPEN(word[SLOT(w, s)]) ->
     REACHED(W_RENEWED);
     set_deadline(LAST + 1 - word[SLOT(w, s)]) /* an earlier one, or a later one */
  :: else -> worker_at[w] = RELEASE_LATE
  fi
}

#define CAN_OPEN (worker_at[w] == IDLE && DRAINED(w) && opened < SCOPES_OF(w) && \
                  (IS_FREE(w, 0) || IS_FREE(w, 1)))
#define IS_IN(s) (worker_at[w] == IDLE && DRAINED(w) && mine[SLOT(w, s)] != NONE)

active [WORKERS] proctype Worker() {
  byte w = _pid;
  byte found, fd;
  byte opened, renewed;
  byte slot, deadline;
end:
  do
  /* OwnPage::make(), PageFile::create(); OwnPage::announce() follows
   * code: timer_client/client/page/own_page.cpp OwnPage::make 749c2c8e
   * code: timer_client/client/page/page_file.cpp PageFile::create bdec8f26
   * code: timer_client/client/page/own_page.cpp OwnPage::announce 34f95d4f */
  :: d_step { worker_at[w] == MAKE_PAGE -> is_page[w] = true; worker_at[w] = READ_INCARNATION }

  /* OwnPage::slot_for(), new_slot(), open_scope(), set_deadline() (a). Between the look at the
   * clock and the store a deadline may have passed. */
  :: d_step { CAN_OPEN && now <= 1 -> open_scope(1) }
  :: d_step { CAN_OPEN && now <= 2 -> open_scope(2) }

  /* must_wake() (b)
   * code: common/wake_protocol.hpp must_wake 4fbb7b47
   * code: timer_client/client/timer_client.cpp TimerClient::State::after_opening f9bd13a4 */
  :: d_step { worker_at[w] == READ_NEXT_WAKE ->
       if
       :: MUST_WAKE(deadline) -> worker_at[w] = READ_DEAD
       :: else -> worker_at[w] = IDLE
       fi;
       if
       :: deadline < next_wake && next_wake < ALWAYS -> REACHED(W_WOKEN_EARLIER)
       :: deadline >= next_wake && next_wake > 0 -> REACHED(W_BY_ITSELF)
       :: else
       fi;
       COUNT_AFTER
       deadline = 0 }
#ifdef FAULT_COUNT_LATE
  :: d_step { worker_at[w] == GROW_COUNT -> grow_slot_count(); slot = 0; worker_at[w] = IDLE }
#endif

  /* OwnPage::wake(). Its load of the number of scans and the load of the incarnation in
   * send_wake_up() are one step: an older number or incarnation only causes more messages.
   * code: timer_client/client/page/own_page.cpp OwnPage::wake 0732aa1d */
  :: d_step { worker_at[w] == READ_DEAD ->
#ifdef FAULT_COUNT_LATE
       grow_slot_count(); slot = 0;
#endif
       if
       :: dead[w] == incarnation -> worker_at[w] = IDLE; REACHED(W_KNOWN_DEAD)
       :: dead[w] != incarnation && dead[w] != NONE -> worker_at[w] = READ_SCANS;
          REACHED(W_TRIED_AGAIN)
       :: else -> worker_at[w] = READ_SCANS
       fi }
  :: d_step { worker_at[w] == READ_SCANS ->
       if
       :: is_woken[w] -> worker_at[w] = IDLE; REACHED(W_ALREADY_WOKEN)
       :: else -> is_same_scan[w] = true; READ_BEFORE worker_at[w] = OPEN_PIPE
       fi }
  TELL_SERVER(worker_at[w], worker_at[w] = IDLE)

  :: d_step { IS_IN(0) -> release_scope(0) }
#if SLOTS > 1
  :: d_step { IS_IN(1) -> release_scope(1) }
#endif
#ifdef FAULT_RELEASE_BY_STORE
  :: d_step { worker_at[w] == STORE_FREE -> free_by_release() }
#endif
  :: d_step { IS_IN(0) && renewed < RENEWALS_OF(w) -> renew_scope(0) }
#if SLOTS > 1
  :: d_step { IS_IN(1) && renewed < RENEWALS_OF(w) -> renew_scope(1) }
#endif
  /* release_late(), likewise; release() returns false
   * code: common/wake_protocol.hpp release_late 1e32f02b */
  :: d_step { worker_at[w] == RELEASE_LATE ->
       HOLDS(P_UNEXPLAINED, word[SLOT(w, slot)] != FREE && word[SLOT(w, slot)] != LATE);
       if
       :: word[SLOT(w, slot)] == JUDGED -> REACHED(W_LEFT_JUDGED); free(SLOT(w, slot))
       :: IS_OPEN(word[SLOT(w, slot)]) ->
          REACHED(W_LEFT_TAKEN_BACK);
#ifndef FAULT_LEFT_OPEN /* release_late() leaves a scope open whose verdict was taken back */
          free(SLOT(w, slot))
#endif
       :: else -> REACHED(W_RELEASE_LOSES); word[SLOT(w, slot)] = LATE
       fi;
       leave() }
  od
}

/* --- the server --- */

#define START 0
#define MAKE_PIPE 1
#define RAISE_INCARNATION 2
#define LIST 3
#define SETTLE 4
#define TAKE_BACK 5
#define READ_PIPE 6
#define READ_COUNT 7
#define READ_SLOT 8
#define JUDGE 9
#define ANNOUNCE_LATE 10
#define ANNOUNCE_NEXT 11
#define RECORD 12
#define SIGNAL 13
#define FINISH 14
#define ASLEEP 15
#define REMOVE_PIPE 16
#define EXIT 17

#ifdef FAULT_ALWAYS_AFTER_READING
#define AFTER_SCAN ANNOUNCE_LATE
#else
#define AFTER_SCAN ANNOUNCE_NEXT
#endif

byte server_at = START;
byte next = 0; /* DeadlineScan::next_: when the server reads the pages again */

#if defined(FAULT_INCARNATION_FIRST) /* the incarnation is raised before the pipe is open */
#define AFTER_START RAISE_INCARNATION
#define AFTER_RAISE MAKE_PIPE
#define AFTER_PIPE LIST
#define AFTER_LIST SETTLE
#elif defined(FAULT_LIST_BEFORE_PIPE) /* the folder is read before the pipe is open */
#define AFTER_START LIST
#define AFTER_LIST MAKE_PIPE
#define AFTER_PIPE RAISE_INCARNATION
#define AFTER_RAISE SETTLE
#else
#define AFTER_START MAKE_PIPE
#define AFTER_PIPE RAISE_INCARNATION
#define AFTER_RAISE LIST
#define AFTER_LIST SETTLE
#endif

/* To the next slot with a verdict, or on. A slot without one gets none before the first scan, so
 * looking at all of them is no step. */
inline settle_next() {
  do
  :: i < ALL_SLOTS && !(known[i / 2] && (IS_EXPIRED(word[i]) || word[i] == LATE)) -> i++
  :: else -> break
  od;
  if
  :: i < ALL_SLOTS -> server_at = SETTLE
  :: else -> i = 0; is_wanted = true; server_at = READ_PIPE
  fi
}

/* To the next page, or on. */
inline scan_next_page() {
  do
  :: i < WORKERS && !known[i] -> i++
  :: else -> break
  od;
  server_at = (i < WORKERS -> READ_COUNT : AFTER_SCAN)
}

/* To the next slot of this page with a passed deadline, or to the next page. */
inline judge_next() {
  do
  :: s < 2 && due[s] == 0 -> s++
  :: else -> break
  od;
  if
  :: s < 2 -> server_at = JUDGE
  :: else -> s = 0; i++; scan_next_page()
  fi
}

/* To the next kill, or to sleep. */
inline kill_next() {
  do
  :: i < ALL_SLOTS && kill[i] == 0 -> i++
  :: else -> break
  od;
  if
  :: i < ALL_SLOTS && is_ended[scope_in[i]] -> server_at = FINISH
  :: i < ALL_SLOTS && !is_ended[scope_in[i]] ->
     server_at = (is_recorded[scope_in[i]] -> SIGNAL : RECORD)
  :: else -> i = 0; server_at = (is_wanted -> READ_PIPE : ASLEEP)
  fi
}

active proctype Server() {
  byte ends = ENDS;
  bool known[2];        /* WatchRegistry::pages_ */
  bool is_wanted;       /* DeadlineScan::want() */
  byte woke;
  byte due[2];          /* of one page: deadlines that have passed */
  byte kill[ALL_SLOTS]; /* the deadline on which a kill is under way */
  byte i, s, count;
end:
  do
  /* BoardFile::open()
   * code: timer_server/runtime_directory.cpp BoardFile::open a18d41aa */
  :: d_step { server_at == START -> next_wake = ALWAYS; server_at = AFTER_START }
  /* RequestPipe::open()
   * code: timer_server/requests/request_pipe.cpp RequestPipe::open 1664f768
   * code: timer_server/runtime_directory.cpp RuntimeDirectory::open 6dec2fa8
   * code: timer_server/runtime_directory.cpp RuntimeDirectory::open_pipe_and_log 6c217226 */
  :: d_step { server_at == MAKE_PIPE ->
       if
       :: pipe_at_path == 0 -> pipe_at_path = 1 + ENDS - ends
       :: else
       fi;
       pipe_read = pipe_at_path;
       server_at = AFTER_PIPE }
  /* BoardFile::serve()
   * code: timer_server/runtime_directory.cpp BoardFile::serve 8b2ec783 */
  :: d_step { server_at == RAISE_INCARNATION ->
       incarnation++;
       server_at = AFTER_RAISE;
       if
       :: AFTER_RAISE == SETTLE -> settle_next()
       :: else
       fi }
  /* WatchRegistry::adopt(), PageFolder::names(). Both pages at once: two workers that appear while
   * the folder is read do not know of each other.
   * code: timer_server/watch/page_registry.cpp WatchRegistry::adopt c150b5f7
   * code: timer_server/scopes/page_folder.cpp PageFolder::names 85a45f6b
   * code: timer_server/recovery.cpp Recovery::adopt 1e6e7a51 */
  :: d_step { server_at == LIST ->
       known[0] = is_page[0];
       known[1] = is_page[1];
       if
       :: known[0] && IS_OPEN(word[0]) && incarnation == 1 -> REACHED(W_FOUND_FIRST)
       :: known[0] && IS_OPEN(word[0]) && incarnation == 2 -> REACHED(W_ADOPTED)
       :: else
       fi;
       server_at = AFTER_LIST;
       if
       :: AFTER_LIST == SETTLE -> settle_next()
       :: else
       fi }

  /* Recovery::settle_judged_slots(), WorkerPage::judged_slots()
   * code: timer_server/recovery.cpp Recovery::settle_judged_slots b3246b4d
   * code: timer_server/scopes/worker_page.cpp WorkerPage::judged_slots 6382134f */
  :: d_step { server_at == SETTLE ->
       if
       :: word[i] == LATE -> free(i); i++; settle_next() /* acknowledge_late_release() */
       :: IS_EXPIRED(word[i]) && IS_TAKEN_BACK(scope_in[i]) ->
#ifdef FAULT_NOT_TAKEN_BACK /* the next server leaves a verdict as it is that is in no kill file */
          i++;
          settle_next()
#else
          server_at = TAKE_BACK
#endif
       :: else -> /* resume_kill(), or finish() if the kill was over */
          REACHED(W_RESUMED);
          kill[i] = word[i] - LAST;
          i++;
          settle_next()
       fi }
  /* take_verdict_back()
   * code: common/wake_protocol.hpp take_verdict_back fa5d051a
   * code: timer_server/scopes/worker_page.cpp WorkerPage::reopen 9d074e5e */
  :: d_step { server_at == TAKE_BACK ->
       if
       :: IS_EXPIRED(word[i]) -> word[i] = word[i] - LAST; REACHED(W_TAKEN_BACK)
       :: else ->
#ifndef FAULT_LATE_RELEASE_IGNORED /* take_verdict_back() ignores a release that came meanwhile */
          free(i)
#endif
       fi;
       i++;
       settle_next() }

  /* Server::iterate(): Inbox::read(), WatchRegistry::on_wake_up_message(), and look_for_pages() after a
   * full pipe; DeadlineScan::run(): announce_scan() (p). A message that comes between the two would only cause one more scan. One
   * that comes while run_once() waits for a deadline that is near is read at that deadline.
   * code: timer_server/server.cpp Server::iterate 27e0f6cf
   * code: timer_server/server.cpp Server::run_once fe7f2ca9
   * code: timer_server/server.cpp Server::read_progress c5ea77a4
   * code: timer_server/inbox.cpp Inbox::read 010cedcd
   * code: timer_server/watch/page_registry.cpp WatchRegistry::look_for_pages 24c79400
   * code: timer_server/watch/page_registry.cpp WatchRegistry::on_wake_up_message c54255cc
   * code: timer_server/watch/deadline_scan.cpp DeadlineScan::run 711d3078
   * code: common/wake_protocol.hpp announce_scan fde183fc */
  :: d_step { server_at == READ_PIPE ||
              server_at == ASLEEP && (message[0] || message[1] || WAS_FULL || now >= next) ->
       woke = now;
       if
       :: (message[0] && !known[0]) || (message[1] && !known[1]) -> REACHED(W_BY_MESSAGE)
       :: server_at == ASLEEP && !message[0] && !message[1] && now < next -> REACHED(W_AFTER_FULL)
       :: else
       fi;
       known[0] = known[0] || message[0] || WAS_FULL && is_page[0];
       known[1] = known[1] || message[1] || WAS_FULL && is_page[1];
       message[0] = false;
       message[1] = false;
       is_full = false;
       is_wanted = false;
       ALWAYS_BEFORE
       is_same_scan[0] = false; is_same_scan[1] = false;
       is_woken[0] = false; is_woken[1] = false;
       next = ALWAYS;
       scan_next_page() }
#ifdef FAULT_FULL_NOT_READ
  :: d_step { server_at == ASLEEP && is_full -> is_full = false }
#endif
  /* WorkerPage::slot_count()
   * code: common/page_reader.cpp slots_in_use cb978d9b */
  :: d_step { server_at == READ_COUNT ->
       count = slot_count[i];
       if
       :: count > 0 -> server_at = READ_SLOT
       :: else -> i++; scan_next_page()
       fi }
  /* WorkerPage::scan(), read_deadline() (q)
   * code: timer_server/scopes/worker_page.cpp WorkerPage::scan 84a3f328
   * code: common/wake_protocol.hpp read_deadline 06e3b5d7
   * code: timer_server/watch/deadline_scan.cpp DeadlineScan::scan_worker 7e0cbe18 */
  :: d_step { server_at == READ_SLOT ->
       if
       :: IS_OPEN(word[SLOT(i, s)]) && word[SLOT(i, s)] <= JUDGES_BY -> due[s] = word[SLOT(i, s)]
       :: IS_OPEN(word[SLOT(i, s)]) && word[SLOT(i, s)] > JUDGES_BY && word[SLOT(i, s)] < next ->
          next = word[SLOT(i, s)]
       :: else
       fi;
       s++;
       if
       :: s == count -> count = 0; s = 0; judge_next()
       :: else
       fi }
  /* DeadlineScan::judge(), try_expire(); expiry_of()
   * code: timer_server/watch/deadline_scan.cpp DeadlineScan::judge a225a402
   * code: timer_server/scopes/worker_page.cpp WorkerPage::try_expire 9ef46e70
   * code: common/wake_protocol.hpp try_expire 263fb2c5 */
  :: d_step { server_at == JUDGE && SERVER_DRAINED ->
       if
       :: EXPIRES(i, s) ->
          HOLDS(P_EARLY, due[s] <= now);
          HOLDS(P_AFTER, !IS_LEFT(SLOT(i, s)));
          HOLDS(P_TWICE, !is_recorded[scope_in[SLOT(i, s)]]);
          word[SLOT(i, s)] = EXPIRED(due[s]);
          kill[SLOT(i, s)] = due[s]
       :: else ->
          if
          :: IS_OPEN(word[SLOT(i, s)]) -> REACHED(W_VERDICT_FAILS)
          :: else
          fi
       fi;
       due[s] = 0;
       s++;
       judge_next() }
#ifdef FAULT_ALWAYS_AFTER_READING
  :: d_step { server_at == ANNOUNCE_LATE -> ALWAYS_AFTER server_at = ANNOUNCE_NEXT }
#endif
  /* announce_next_scan() (r). The server announces a time at or after `next` (wakes_before()): a later
   * one only causes more messages.
   * code: common/wake_protocol.hpp announce_next_scan 6b93d66b */
  :: d_step { server_at == ANNOUNCE_NEXT && SERVER_DRAINED ->
       next_wake = next;
       i = 0;
       woke = 0;
       kill_next() }

  /* Kills::record_verdicts()
   * code: timer_server/kills/kills.cpp Kills::record_verdicts 78b91aa6 */
  :: d_step { server_at == RECORD -> is_recorded[scope_in[i]] = true; server_at = SIGNAL }
  /* Kills::find_releases(), released_late_at(), signal_stopped(), end(). The worker is alive
   * afterwards, as with --dry-run, signal 0, or a signal that it survives.
   * code: timer_server/kills/kill_steps.cpp Kills::find_releases 235d85b7
   * code: timer_server/scopes/worker_page.cpp WorkerPage::released_late_at ed6cf244 */
  :: d_step { server_at == SIGNAL ->
       if
       :: word[i] == EXPIRED(kill[i]) -> HOLDS(P_AFTER, !IS_LEFT(i)); REACHED(W_KILL)
       :: else -> REACHED(W_CANCELLED)
       fi;
       is_ended[scope_in[i]] = true;
       server_at = FINISH }
  /* finish_scopes(), finish_verdict(), acknowledge_late_release(): once the word is kReleasedLate
   * only the server changes it, so both exchanges are one step. Likewise in take_verdict_back().
   * code: common/wake_protocol.hpp finish_verdict 83b6ee5c
   * code: common/wake_protocol.hpp acknowledge_late_release d364e7bd
   * code: timer_server/scopes/worker_page.cpp WorkerPage::finish b4e7ea4b */
  :: d_step { server_at == FINISH ->
       if
       :: word[i] == EXPIRED(kill[i]) -> word[i] = AFTER_KILL
       :: word[i] == LATE -> free(i)
       :: else
       fi;
       kill[i] = 0;
       is_wanted = true; /* Core::wants_scan */
       kill_next() }

  /* Server::withdraw(): BoardFile::stop(), RequestPipe::remove_from_path()
   * code: timer_server/server.cpp Server::withdraw 822734de
   * code: timer_server/runtime_directory.cpp BoardFile::stop 555df702 */
  :: d_step { server_at == ASLEEP && ends > 0 ->
       REACHED(W_STOPPED);
       next_wake = NEVER;
       server_at = REMOVE_PIPE }
  :: d_step { server_at == REMOVE_PIPE -> pipe_at_path = 0; server_at = EXIT }

  /* The server is killed, or has stopped; the kernel closes the pipe. The next one starts. */
  :: d_step { ends > 0 && SERVER_DRAINED ->
       ends--;
       pipe_read = 0;
       message[0] = false; message[1] = false;
       is_full = false;
       known[0] = false; known[1] = false;
       is_wanted = false;
       next = 0;
       woke = 0;
       i = 0; s = 0; count = 0;
       due[0] = 0; due[1] = 0;
       kill[0] = 0; kill[1] = 0; kill[2] = 0; kill[3] = 0;
       server_at = START }
  od
}

#if defined(FAULT_RELAXED_DEADLINE) || defined(FAULT_RELAXED_ALWAYS)
/* The stores that wait in a processor get through at any time. */
active proctype StoreBuffers() {
end:
  do
#ifdef FAULT_RELAXED_DEADLINE
  :: d_step { buffered_at[0] != 0 ->
       word[buffered_at[0] - 1] = buffered[0]; buffered_at[0] = 0; buffered[0] = 0 }
  :: d_step { buffered_at[1] != 0 ->
       word[buffered_at[1] - 1] = buffered[1]; buffered_at[1] = 0; buffered[1] = 0 }
#else
  :: d_step { server_buffered != NONE -> next_wake = server_buffered; server_buffered = NONE }
#endif
  od
}
#endif

/* --- the clock, and what is true whenever all processes wait --- */

#define IS_WORKER_QUIET(w) \
  (worker_at[w] == IDLE && DRAINED(w))
#define IS_QUIET \
  (server_at == ASLEEP && !IS_MESSAGE && now < next && SERVER_DRAINED && \
   IS_WORKER_QUIET(0) && (WORKERS == 1 || IS_WORKER_QUIET(1)))

inline check_slot(i) {
  HOLDS(P_OPEN, !(IS_OPEN(word[i]) && IS_LEFT(i)));
  HOLDS(P_MISSED, !(IS_OPEN(word[i]) && word[i] <= now));
  HOLDS(P_UNFINISHED, !IS_EXPIRED(word[i]) && word[i] != LATE)
}

inline check() {
  if
  :: IS_QUIET ->
     check_slot(0);
     check_slot(1);
     check_slot(2);
     check_slot(3)
  :: else
  fi
}

/* It has no label `end`: if nothing can go on and not all processes wait as they should, Spin
 * reports an invalid end state. */
active proctype Clock() {
  do
  :: d_step { now < LAST -> check(); now++ }
  :: d_step { now == LAST && IS_QUIET -> check() }
  od
}

/* --- what no step stands for, and still chooses an order of memory ---
 *
 * Soft deadlines, idle timeouts, pauses, statistics and the fields of a slot. When one of these
 * changes, compare it with the argument at its function, and with the tests of it.
 * code: common/wake_protocol.hpp must_wake_to_warn ef3e2a4a
 * code: common/wake_protocol.hpp begin_idle_watch e2b82fe7
 * code: common/wake_protocol.hpp must_wake_at c3ffd40a
 * code: common/wake_protocol.hpp end_idle_watch 98866d84
 * code: common/wake_protocol.hpp is_unchanged 3c4fa3ff
 * code: common/wake_protocol.hpp try_expire_idle 36d0e2ca
 * code: common/wake_protocol.hpp is_idle_watch f702a1ee
 * code: timer_client/client/page/page_scope.hpp due_now 852ecf33
 * code: timer_client/client/page/page_scope.hpp times_of 227b63e4
 * code: timer_client/client/page/page_scope.cpp statistics_of acc261b8
 * code: timer_client/client/page/page_scope.cpp must_wake_paused b4ecfcf8
 * code: timer_client/client/page/page_scope.cpp set_flags 55269f38
 * code: timer_client/client/page/page_scope.cpp replaced_renewal e3d95c33
 * code: timer_client/client/page/page_scope.cpp pause_scope 5f5dd1c3
 * code: timer_client/client/page/page_scope.cpp try_move cabb0455
 * code: timer_client/client/page/page_scope.cpp resume_scope 0054802f
 * code: timer_client/client/page/page_scope.cpp open_suspended 58d1830b
 * code: timer_client/client/page/page_scope.cpp renew_after_pause f8f9b149
 * code: timer_client/client/page/page_statistics.hpp count_scope 27d05e39
 * code: timer_client/client/page/page_statistics.hpp take 6064c27b
 * code: common/page_reader.cpp read_slot 221c7ccf
 * code: common/page_reader.cpp read_ended_scopes 4263b2b0
 *
 * Every function that chooses an order in these files is named above:
 * orders: common/wake_protocol.hpp
 * orders: timer_client/client/page/page_scope.hpp
 * orders: timer_client/client/page/page_scope.cpp
 * orders: timer_client/client/page/thread_slots.hpp */
