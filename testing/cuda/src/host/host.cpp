// Runs a launch on the host: a fiber for each thread of a block, the blocks one after another. It
// ends the launch at the first access or meeting of threads that a GPU would not define.
#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>
#include <utility>
#include <vector>
#define PC __builtin_return_address(0)

extern "C" void host_switch(void** from, void* to);
extern "C" host::Position host_position;
extern "C" char __executable_start, _end;
host::Position host_position;
// Saves what a function must keep, changes the stack, and takes the same from there.
asm(R"(
.text
.globl host_switch
host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

namespace host {
const u32 LANES = 32, MOST_THREADS = 1024, MOST_OPERANDS = 511, NOBODY = 0xffffffff;
const u64 STACK = 128 << 10, GUARD = 4096, SLOT = 1ull << 32, MARGIN = 1 << 20;
const u16 MANY = 0x3fff, OTHER_BLOCK = 0x8000, ON_ITS_WAY = 0x4000;

enum Access { READ, WRITE, UPDATE, FAULT };
enum State { READY, AT_BARRIER, IN_WARP, ENDED };
struct Thread { void* stack; State state; u32 id, site; void* pc; u64 value, result, trace; };
struct Warp { u32 arrived, site; int lanes; };
// The last accesses to 4 bytes, or to one byte of 4 that were once touched in part. Times count
// barriers over all blocks, and 0 is never; so a time also says the block. A writer may have begun
// a copy there that it has not waited for.
struct Cell { u32 wrote, read; u16 writer, reader; u32 split; };
// Each operand has 4 GiB of addresses for itself: an address always says which operand was meant.
struct Memory { u8* base; u64 bytes; u32 access; bool whole; Cell* cells; std::vector<Cell> parts; u64 open; };
struct Complaint { bool any; i32 slot; u64 pc, pc2; Dim block; u32 thread; char what[400], where[100]; };
struct Launch {
    Dim grid; u32 block, shared, order, seed; void* function; u64 arguments[512]; u32 argument_count;
};

static Memory memories[MOST_OPERANDS + 1];  // shared memory, then each operand
static u32 used;
static u8 *arena, *stacks;
static Thread* self;
static void* scheduler;
static void* last_pc;
static Thread threads[MOST_THREADS];
static Warp warps[MOST_THREADS / LANES];
static Launch now;
static u32 time_now, block_start;  // the time, and when the block began
struct Start { u32 time, block; };
static std::vector<Start> starts;
static Complaint complaint;
static bool faulted;
static u64 accesses, trace;

static u64 mixed(u64 a, u64 b) {
    u64 x = (a ^ b) * 0x9e3779b97f4a7c15ull;
    return x ^ x >> 29;
}

// Takes down what is wrong, and ends the launch before it happens.
static void complain(void* pc, i32 slot, const char* where, const char* what, ...) {
    if (!complaint.any) {
        complaint.any = true;
        complaint.slot = slot;
        complaint.pc = (u64)pc;
        complaint.pc2 = (u64)last_pc;
        complaint.block = host_position.block;
        complaint.thread = self ? self->id : NOBODY;
        snprintf(complaint.where, sizeof complaint.where, "%s", where);
        va_list more;
        va_start(more, what);
        vsnprintf(complaint.what, sizeof complaint.what, what, more);
        va_end(more);
    }
    if (self) host_switch(&self->stack, scheduler);
}

// Who made an access of that time, in words.
static const char* who(u32 time, u32 thread) {
    static char text[100];
    auto after = std::upper_bound(starts.begin(), starts.end(), time, [](u32 t, const Start& s) { return t < s.time; });
    u32 block = (after - 1)->block;
    int length = 0;
    if (time < block_start) {
        Dim g = now.grid;
        length = snprintf(text, sizeof text, "block (%u, %u, %u), ", block % g.x, block / g.x % g.y, block / g.x / g.y);
    }
    if (thread == MANY) snprintf(text + length, sizeof text - length, "several threads");
    else snprintf(text + length, sizeof text - length, "thread %u", thread);
    return text;
}

__attribute__((noinline)) static void memory_complaint(void* pc, u32 slot, i64 at, u64 bytes, const char* what) {
    char where[100];
    if (bytes == 1) snprintf(where, sizeof where, "byte %lld of %llu", at, memories[slot].bytes);
    else snprintf(where, sizeof where, "bytes %lld to %lld of %llu", at, at + (i64)bytes - 1, memories[slot].bytes);
    complain(pc, slot, where, "%s", what);
}
__attribute__((noinline)) static void race(
    void* pc, u32 slot, u64 at, u64 bytes, const char* what, u32 time, u32 thread) {
    char text[200];
    snprintf(text, sizeof text, "race: %s %s", what, who(time, thread));
    memory_complaint(pc, slot, (i64)at, bytes, text);
}

template <bool WRITES>
static inline void check(Cell& c, u32 slot, u64 at, u32 bytes, void* pc) {
    u16 me = (u16)self->id;
    if (slot == 0) {
        if (c.wrote < block_start) c.wrote = 0;
        if (c.read < block_start) c.read = 0, c.reader = 0;
        if (c.writer & ON_ITS_WAY)
            return memory_complaint(pc, slot, (i64)at, bytes, "an asynchronous copy to it is not waited for");
        if (!WRITES && !c.wrote)
            return memory_complaint(pc, slot, (i64)at, bytes, "shared memory is read before it is written");
    }
    if (c.wrote && (c.wrote < block_start || (c.wrote == time_now && c.writer != me)))
        return race(
            pc, slot, at, bytes, WRITES ? "written, and also by" : "read what is written by", c.wrote, c.writer);
    if (WRITES) {
        u16 reader = c.reader & MANY;
        if (c.read && (c.read < block_start || (c.read == time_now && reader != me)))
            return race(pc, slot, at, bytes, "written while read by", c.read, reader);
        if (c.reader & OTHER_BLOCK)
            return memory_complaint(pc, slot, (i64)at, bytes, "race: written while read by another block");
        c.wrote = time_now;
        c.writer = me;
    } else {
        u16 other = (c.reader & OTHER_BLOCK) | (c.read && c.read < block_start ? OTHER_BLOCK : 0);
        c.reader = other | (c.read == time_now && (c.reader & MANY) != me ? MANY : me);
        c.read = time_now;
    }
}

__attribute__((noinline)) static void outside(const u8* a, u64 bytes, bool write, void* pc) {
    u8* stack = stacks + self->id * STACK;
    if (a >= stack && a + bytes <= stack + STACK) return;
    // A table of constants.
    if (!write && a >= (u8*)&__executable_start && a + bytes <= (u8*)&_end) return;
    complain(pc, -1, "", "%s outside the operands", write ? "write" : "read");
}

// An access that may be to parts of 4 bytes.
template <bool WRITES>
__attribute__((noinline)) static void touch_parts(Memory& m, u32 slot, u64 at, u64 end, void* pc) {
    while (at < end) {
        Cell& c = m.cells[at / 4];
        if (at % 4 == 0 && at + 4 <= end && !c.split) {
            check<WRITES>(c, slot, at, 4, pc);
            at += 4;
            continue;
        }
        if (!c.split) {
            c.split = (u32)m.parts.size();
            m.parts.insert(m.parts.end(), 4, Cell{c.wrote, c.read, c.writer, c.reader, 0});
        }
        for (u64 next = std::min(end, at / 4 * 4 + 4); at < next; at++)
            check<WRITES>(m.parts[c.split + at % 4], slot, at, 1, pc);
    }
}

__attribute__((noinline)) static void wrong_way(const Memory& m, u32 slot, u64 at, u64 bytes, bool write, void* pc) {
    memory_complaint(pc, slot, (i64)at, bytes,
        m.access == FAULT ? "access to what only fail may touch"
        : write ? "write to an operand that is only read" : "read from an operand that is only written");
}

// It is made for each width, most of which are of whole cells.
template <bool WRITES>
__attribute__((always_inline)) static inline void touch(void* p, u64 bytes, u64 alignment, void* pc) {
    if (!self) return;
    last_pc = pc;
    u8* a = (u8*)p;
    u64 slot = (u64)(a - arena) / SLOT;
    if (slot >= used) return outside(a, bytes, WRITES, pc);
    accesses++;
    Memory& m = memories[slot];
    u64 at = (u64)(a - m.base);
    self->trace += mixed(mixed(at, slot << 8 | bytes << 1 | WRITES), time_now - block_start);
    if (at > m.bytes || bytes > m.bytes - at)
        return memory_complaint(pc, slot, (i64)at, bytes, WRITES ? "write out of bounds" : "read out of bounds");
    if ((u64)a & (alignment - 1)) return memory_complaint(pc, slot, (i64)at, bytes, "misaligned access");
    if (m.access != UPDATE && m.access != (WRITES ? WRITE : READ)) return wrong_way(m, slot, at, bytes, WRITES, pc);
    if (bytes % 4 || at % 4) return touch_parts<WRITES>(m, slot, at, at + bytes, pc);
    for (u64 end = at + bytes; at < end; at += 4) {
        Cell& c = m.cells[at / 4];
        if (c.split) return touch_parts<WRITES>(m, slot, at, end, pc);
        check<WRITES>(c, slot, at, 4, pc);
    }
}

static void wait_for_others() { host_switch(&self->stack, scheduler); }
void barrier(u32 site) {
    last_pc = self->pc = PC;
    self->state = AT_BARRIER;
    self->site = site;
    wait_for_others();
}
// Counts the lanes of a warp, which must all come to the same place. It is true for the last of
// them, who wakes the others.
static bool meet(const char* what, int lanes, u32 site, void* pc) {
    Warp& warp = warps[self->id / LANES];
    last_pc = self->pc = pc;
    self->site = site;
    if (self->id / LANES == now.block / LANES)
        complain(pc, -1, "", "%s in a warp of %u lanes", what, now.block % LANES);
    if (warp.arrived == 0) warp = Warp{0, site, lanes};
    if (warp.site != site) complain(pc, -1, "", "threads diverge: %s, while a lane of the warp waits in another", what);
    if (warp.lanes != lanes)
        complain(pc, -1, "", "%s over %d, while a lane of the warp gives %d", what, lanes, warp.lanes);
    if (++warp.arrived == LANES) {
        warp.arrived = 0;
        Thread* first = threads + self->id / LANES * LANES;
        for (u32 l = 0; l < LANES; l++) first[l].state = READY;
        return true;
    }
    self->state = IN_WARP;
    return false;
}
u64 exchange(u64 value, int lanes, u32 site) {
    if (lanes < 0 || lanes >= (int)LANES) complain(PC, -1, "", "shuffle over %d", lanes);
    self->value = value;
    if (meet("shuffle", lanes, site, PC)) {
        Thread* first = threads + self->id / LANES * LANES;
        for (u32 l = 0; l < LANES; l++) first[l].result = first[l ^ lanes].value;
    } else wait_for_others();
    return self->result;
}
u32 vote(bool value, u32 site) {
    self->value = value;
    if (meet("ballot", 0, site, PC)) {
        Thread* first = threads + self->id / LANES * LANES;
        u64 bits = 0;
        for (u32 l = 0; l < LANES; l++) bits |= first[l].value << l;
        for (u32 l = 0; l < LANES; l++) first[l].result = bits;
    } else wait_for_others();
    return (u32)self->result;
}
void fail(void* fault, u32 reason) {
    last_pc = PC;
    u64 slot = (u64)((u8*)fault - arena) / SLOT;
    if (slot >= used || slot == 0) return complain(PC, -1, "", "fail outside the operands");
    Memory& m = memories[slot];
    u64 at = (u64)((u8*)fault - m.base);
    if (m.access != FAULT) return memory_complaint(PC, slot, (i64)at, 4, "fail with an operand that is not for faults");
    if (at > m.bytes || 4 > m.bytes - at) return memory_complaint(PC, slot, (i64)at, 4, "fail out of bounds");
    if (at % 4) return memory_complaint(PC, slot, (i64)at, 4, "misaligned access");
    if (!reason) return memory_complaint(PC, slot, (i64)at, 4, "fail with reason 0");
    *(u32*)fault = reason;
    faulted = true;
}
void misuse(const char* what) { complain(PC, -1, "", "%s", what); }

template <size_t... I> static void call(std::index_sequence<I...>) {
    ((void (*)(decltype((void)I, u64())...))now.function)(now.arguments[I]...);
}
static void forget_copies(u32 thread);
static void all_waited_for();
static void begin() {
    // More arguments than there are do not hurt.
    if (now.argument_count <= 8) call(std::make_index_sequence<8>());
    else if (now.argument_count <= 64) call(std::make_index_sequence<64>());
    else call(std::make_index_sequence<512>());
    all_waited_for();
    self->state = ENDED;
    wait_for_others();
    abort();
}

// Numbers from 0 in the order that the launch asks for.
static void arrange(std::vector<u32>& numbers, u64& draw) {
    for (u32 i = (u32)numbers.size(); now.order == 2 && i > 1; i--) {
        draw = draw * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(numbers[i - 1], numbers[(draw >> 33) % i]);
    }
}
static std::vector<u32> numbers_to(u32 n, u64& draw) {
    std::vector<u32> numbers(n);
    std::iota(numbers.begin(), numbers.end(), 0);
    if (now.order == 1) std::reverse(numbers.begin(), numbers.end());
    arrange(numbers, draw);
    return numbers;
}

// Nothing can go on: says why, at one of the threads.
static void stuck() {
    u32 barriers = 0, warp = 0, ended = 0, place = 0;
    Thread* odd = nullptr;
    for (u32 i = 0; i < now.block; i++) {
        State s = threads[i].state;
        (s == AT_BARRIER ? barriers : s == IN_WARP ? warp : ended)++;
        if (s != ENDED && (!odd || s == IN_WARP)) odd = &threads[i];
    }
    for (u32 i = 0; i < now.block; i++) if (threads[i].state == AT_BARRIER && threads[i].site == odd->site) place++;
    self = nullptr;
    complaint.any = false;
    if (barriers == now.block)
        complain(odd->pc, -1, "", "threads diverge: %u of %u wait at this barrier, the others at another", place, now.block);
    else
        complain(odd->pc, -1, "",
            "threads diverge: of %u threads %u wait at a barrier, %u for their warp, and %u have ended",
            now.block, barriers, warp, ended);
    complaint.thread = odd->id;
}

static void run_block(u32 number, std::vector<u32>& order, u64& draw) {
    time_now++;
    block_start = time_now;
    starts.push_back({time_now, number});
    memset(memories[0].base, 0xff, now.shared);
    for (Warp& w : warps) w.arrived = 0;
    for (u32 i = 0; i < now.block; i++) {
        Thread& t = threads[i];
        void** top = (void**)(stacks + (i + 1) * STACK - 64);
        *--top = nullptr;
        *--top = (void*)begin;
        for (int r = 0; r < 6; r++) *--top = nullptr;
        t = Thread{top, READY, i, 0, nullptr, 0, 0, 0};
        forget_copies(i);
    }
    while (true) {
        bool moved = false;
        arrange(order, draw);
        for (u32 i : order) {
            Thread& t = threads[i];
            if (t.state != READY) continue;
            moved = true;
            self = &t;
            host_position.thread = {i, 0, 0};
            host_switch(&scheduler, t.stack);
            self = nullptr;
            if (complaint.any) return;
        }
        if (moved) {
            bool ready = false;
            for (u32 i = 0; i < now.block; i++) ready |= threads[i].state == READY;
            if (ready) continue;
        }
        u32 ended = 0, waiting = 0;
        for (u32 i = 0; i < now.block; i++) {
            ended += threads[i].state == ENDED;
            waiting += threads[i].state == AT_BARRIER && threads[i].site == threads[0].site;
        }
        if (ended == now.block) {
            for (u32 i = 0; i < now.block; i++) trace += mixed(mixed(number, i), threads[i].trace);
            return;
        }
        if (waiting != now.block) return stuck();
        time_now++;
        for (u32 i = 0; i < now.block; i++) threads[i].state = READY;
    }
}

static void run() {
    complaint = Complaint{};
    faulted = false;
    accesses = trace = 0;
    last_pc = nullptr;
    time_now = 0;
    starts.clear();
    u64 draw = now.seed * 0x9e3779b97f4a7c15ull + 1;
    host_position.block_size = {now.block, 1, 1};
    host_position.grid_size = now.grid;
    host_position.shared = memories[0].base;
    std::vector<u32> order = numbers_to(now.block, draw);
    Dim g = now.grid;
    for (u32 b : numbers_to(g.x * g.y * g.z, draw)) {
        host_position.block = {b % g.x, b / g.x % g.y, b / g.x / g.y};
        run_block(b, order, draw);
        if (complaint.any) return;
    }
    for (u32 s = 1; s < used && !faulted; s++) {
        Memory& m = memories[s];
        if (!m.whole || (m.access != WRITE && m.access != UPDATE)) continue;
        for (u64 at = 0, step; at < m.bytes; at += step) {
            Cell& c = m.cells[at / 4];
            step = c.split ? 1 : 4;
            if (c.split ? m.parts[c.split + at % 4].wrote : c.wrote) continue;
            memory_complaint(nullptr, s, (i64)at, 1, "the result is not written whole");
            complaint.thread = NOBODY;
            complaint.pc2 = 0;
            return;
        }
    }
}
}

#define HOOK(n) \
    extern "C" void __tsan_read##n(void* p) { host::touch<false>(p, n, n, PC); } \
    extern "C" void __tsan_write##n(void* p) { host::touch<true>(p, n, n, PC); } \
    extern "C" void __tsan_unaligned_read##n(void* p) { host::touch<false>(p, n, 1, PC); } \
    extern "C" void __tsan_unaligned_write##n(void* p) { host::touch<true>(p, n, 1, PC); }
HOOK(1) HOOK(2) HOOK(4) HOOK(8) HOOK(16)
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_read_range(void* p, unsigned long n) { host::touch<false>(p, n, 1, PC); }
extern "C" void __tsan_write_range(void* p, unsigned long n) { host::touch<true>(p, n, 1, PC); }
#define UNDEFINED(name, what) \
    extern "C" void __ubsan_handle_##name(void*, void*, void*) { host::complain(PC, -1, "", what); }
UNDEFINED(add_overflow, "overflow of a sum")
UNDEFINED(sub_overflow, "overflow of a difference")
UNDEFINED(mul_overflow, "overflow of a product")
UNDEFINED(negate_overflow, "overflow of a negation")
UNDEFINED(divrem_overflow, "division by zero or overflow of a division")
UNDEFINED(shift_out_of_bounds, "shift by too many or by less than 0 bits, or of a negative number")
UNDEFINED(out_of_bounds, "index outside an array")
