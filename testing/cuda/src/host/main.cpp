// Reads launches from the standard input and answers on the standard output, until the input ends.
// Numbers are little endian; `worker.rs` writes and reads the same.
extern void* const host_entries[];

namespace host {
static void take(void* to, u64 bytes) {
    for (u8* p = (u8*)to; bytes;) {
        ssize_t n = read(0, p, bytes);
        if (n <= 0) _exit(0);
        p += n;
        bytes -= (u64)n;
    }
}
static void give(const void* from, u64 bytes) {
    for (const u8* p = (const u8*)from; bytes;) {
        ssize_t n = write(1, p, bytes);
        if (n <= 0) _exit(1);
        p += n;
        bytes -= (u64)n;
    }
}
template <class T> static T take() { T x; take(&x, sizeof x); return x; }
template <class T> static void give(T x) { give(&x, sizeof x); }

// `ends` says whether the process takes no more launches.
static void give_complaint(bool ends) {
    const Complaint& c = complaint;
    give<u32>(ends ? 2 : 1);
    give<i32>(c.slot);
    give<u32>(c.thread);
    give(c.block);
    give(c.pc);
    give(c.pc2);
    for (const char* text : {c.what, c.where}) {
        give<u32>((u32)strlen(text));
        give(text, strlen(text));
    }
}

// A signal ends the process: what it was doing is not to be trusted any more.
static void caught(int signal, siginfo_t*, void* context) {
    u64 pc = (u64)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP] + 1;
    Thread* thread = self;
    self = nullptr;
    complaint.any = false;
    if (signal == SIGVTALRM) complain((void*)pc, -1, "", "no end within the time limit");
    else complain((void*)pc, -1, "", "crash by signal %d", signal);
    complaint.thread = thread ? thread->id : NOBODY;
    give_complaint(true);
    _exit(1);
}

// Room of that size in a slot; nothing around it may be touched.
static u8* room(u32 slot, u64 bytes, u64 offset) {
    u8* start = arena + slot * SLOT + MARGIN;
    Memory& m = memories[slot];
    u64 pages = (bytes + offset + 4095) / 4096 * 4096;
    if (pages > m.open && mprotect(start, pages, PROT_READ | PROT_WRITE)) { perror("mprotect"); _exit(1); }
    m.open = std::max(m.open, pages);
    free(m.cells);
    m.cells = (Cell*)calloc(bytes / 4 + 1, sizeof(Cell));
    if (!m.cells) { perror("calloc"); _exit(1); }
    m.parts.assign(4, Cell{});
    m.bytes = bytes;
    m.base = start + offset;
    return m.base;
}

static void serve() {
    now.function = host_entries[take<u32>()];
    now.order = take<u32>();
    now.seed = take<u32>();
    u32 seconds = take<u32>();
    now.grid = take<Dim>();
    now.block = take<u32>();
    now.shared = take<u32>();
    u32 operands = take<u32>(), numbers = take<u32>();
    used = operands + 1;
    now.argument_count = operands + numbers;
    room(0, now.shared, 128);
    memories[0].access = UPDATE;
    for (u32 i = 1; i <= operands; i++) {
        u32 access = take<u32>(), whole = take<u32>(), past = take<u32>();
        u64 bytes = take<u64>();
        // Multiples of 16 and not of 32, which are others in another order.
        u8* base = room(i, bytes, 16 + 32 * ((i * 3 + now.order * 5 + now.seed) % 32) + past);
        memories[i].access = access;
        memories[i].whole = whole != 0;
        take(base, bytes);
        now.arguments[i - 1] = (u64)base;
    }
    for (u32 i = 0; i < numbers; i++) now.arguments[operands + i] = take<u64>();
    itimerval limit = {{0, 0}, {(time_t)seconds, 0}}, none = {};
    setitimer(ITIMER_VIRTUAL, &limit, nullptr);
    run();
    setitimer(ITIMER_VIRTUAL, &none, nullptr);
    if (complaint.any) return give_complaint(false);
    give<u32>(0);
    give<u32>(faulted);
    give<u64>(accesses);
    give<u64>(trace);
    for (u32 i = 1; i <= operands; i++)
        if (memories[i].access != READ) give(memories[i].base, memories[i].bytes);
}

static void* reserve(u64 bytes, int protection) {
    void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) { perror("mmap"); _exit(1); }
    return p;
}
}

int main() {
    using namespace host;
    arena = (u8*)reserve(SLOT * (MOST_OPERANDS + 1), PROT_NONE);
    stacks = (u8*)reserve(STACK * MOST_THREADS, PROT_READ | PROT_WRITE);
    for (u32 i = 0; i < MOST_THREADS; i++) mprotect(stacks + i * STACK, GUARD, PROT_NONE);
    stack_t other = {};
    other.ss_size = 64 << 10;
    other.ss_sp = reserve(other.ss_size, PROT_READ | PROT_WRITE);
    sigaltstack(&other, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = caught;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int s : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGVTALRM}) sigaction(s, &action, nullptr);
    while (true) serve();
}
