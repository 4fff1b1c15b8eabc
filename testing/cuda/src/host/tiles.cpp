// What the host does for asynchronous copies, and for the tiles that a warp loads and multiplies.
namespace host {
// A copy to shared memory that a thread has begun; the groups before the last `group` are closed.
struct Copy { u8* to; const u8* from; bool there; u32 group; void* pc; };
static std::vector<Copy> copies[MOST_THREADS];
static u32 groups[MOST_THREADS];

// Says who wrote 16 bytes of shared memory, and when.
static void written(u8* to, u16 writer) {
    Memory& m = memories[0];
    for (u64 at = (u64)(to - m.base) / 4, end = at + 4; at < end; at++) {
        Cell& c = m.cells[at];
        c.wrote = time_now, c.writer = writer;
        for (u32 i = 0; c.split && i < 4; i++) m.parts[c.split + i].wrote = time_now, m.parts[c.split + i].writer = writer;
    }
}
void copy_async(void* shared, const void* global, bool there) {
    u64 slot = (u64)((u8*)global - arena) / SLOT;
    if ((u64)((u8*)shared - arena) / SLOT != 0) complain(PC, -1, "", "asynchronous copy to what is no shared memory");
    if (there && (slot == 0 || slot >= used)) complain(PC, -1, "", "asynchronous copy from what is no operand");
    if (there) touch<false>((void*)global, 16, 16, PC);
    touch<true>(shared, 16, 16, PC);
    written((u8*)shared, (u16)self->id | ON_ITS_WAY);
    memset(shared, 0xff, 16);
    copies[self->id].push_back({(u8*)shared, (const u8*)global, there, groups[self->id], PC});
}
void copy_commit() { groups[self->id]++; }
void copy_wait(int left) {
    std::vector<Copy>& all = copies[self->id];
    auto is_done = [&](const Copy& c) { return (i64)c.group < (i64)groups[self->id] - left; };
    auto end = std::find_if_not(all.begin(), all.end(), is_done);
    for (auto copy = all.begin(); copy != end; copy++) {
        written(copy->to, (u16)self->id);
        if (copy->there) memcpy(copy->to, copy->from, 16);
        else memset(copy->to, 0, 16);
    }
    all.erase(all.begin(), end);
}
static void forget_copies(u32 thread) {
    copies[thread].clear();
    groups[thread] = 0;
}
static void all_waited_for() {
    if (!copies[self->id].empty()) complain(copies[self->id][0].pc, 0, "", "an asynchronous copy is never waited for");
}

// What lanes give to the others of their warp, and get.
struct Tiles { Words sums, a; u32 b[2]; u16 row[8]; };
static Tiles tiles_of[MOST_THREADS];

Words tiles(const void* row, bool turned, u32 site) {
    if ((u64)((u8*)row - arena) / SLOT != 0) complain(PC, -1, "", "load of tiles from what is no shared memory");
    touch<false>((void*)row, 16, 16, PC);
    memcpy(tiles_of[self->id].row, row, 16);
    if (meet("load of tiles", 0, site, PC)) {
        Tiles* first = tiles_of + self->id / LANES * LANES;
        for (u32 l = 0; l < LANES; l++)
            for (u32 i = 0; i < 4; i++) {
                u32 r = l / 4, c = l % 4 * 2;
                Tiles* tile = first + 8 * i;
                first[l].sums.w[i] = turned ? tile[c].row[r] | (u32)tile[c + 1].row[r] << 16
                                            : tile[r].row[c] | (u32)tile[r].row[c + 1] << 16;
            }
    } else wait_for_others();
    return tiles_of[self->id].sums;
}

static double widened(u32 pair, u32 which, bool is_bf16) {
    u32 bits = pair >> 16 * which & 0xffff, wide = bits << 16;
    typedef short Halves __attribute__((vector_size(16)));
    float x;
    memcpy(&x, &wide, 4);
    return is_bf16 ? x : __builtin_ia32_vcvtph2ps(Halves{(short)bits})[0];
}
// The sums are f64 in the order of the terms, rounded once, as in the run of the PTX. A GPU adds in
// another order, and may cut bits off.
Words product(Words sums, Words a, u32 b0, u32 b1, bool is_bf16, u32 site) {
    Tiles& own = tiles_of[self->id];
    own.sums = sums, own.a = a, own.b[0] = b0, own.b[1] = b1;
    if (meet("product of tiles", 0, site, PC)) {
        Tiles* first = tiles_of + self->id / LANES * LANES;
        double left[16][16], right[16][8], sum[16][8];
        for (u32 l = 0; l < LANES; l++) {
            u32 row = l / 4, column = l % 4 * 2;
            for (u32 i = 0; i < 8; i++)
                left[row + i / 2 % 2 * 8][column + i % 2 + i / 4 * 8] = widened(first[l].a.w[i / 2], i % 2, is_bf16);
            for (u32 i = 0; i < 4; i++) {
                float x;
                memcpy(&x, &first[l].sums.w[i], 4);
                right[column + i % 2 + i / 2 * 8][row] = widened(first[l].b[i / 2], i % 2, is_bf16);
                sum[row + i / 2 * 8][column + i % 2] = x;
            }
        }
        for (u32 r = 0; r < 16; r++)
            for (u32 k = 0; k < 16; k++)
                for (u32 c = 0; c < 8; c++) sum[r][c] += left[r][k] * right[k][c];
        for (u32 l = 0; l < LANES; l++)
            for (u32 i = 0; i < 4; i++) {
                double x = sum[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
                float y = (float)x;
                u32 none = 0x7fffffff;
                memcpy(&first[l].sums.w[i], x == x ? (void*)&y : (void*)&none, 4);
            }
    } else wait_for_others();
    return own.sums;
}
}
