//! All instructions that the processor has against their definition, to the bit.

use super::{Block, HALF, HEIGHT, LINE, Line, Piece, Planes, Terms, Vectors, WIDTH, with_lines};
use shardc_testkit::random::Random;

fn floats(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect()
}

fn lines(random: &mut Random, count: usize) -> Vec<Line> {
    floats(random, count * LINE).as_chunks().0.to_vec()
}

fn bits<const N: usize>(lines: &[[f32; N]]) -> Vec<u32> {
    lines.as_flattened().iter().map(|x| x.to_bits()).collect()
}

/// Each lane of each piece, and none for one without.
fn lanes(piece: &Piece) -> impl Iterator<Item = usize> {
    (0..LINE).filter(|lane| piece.mask >> lane & 1 == 1)
}

/// Pieces of some lines, whose lanes are inside of `len` elements.
fn pieces(random: &mut Random, count: usize, step: usize, len: usize) -> Vec<Piece> {
    let mut pieces = vec![];
    for line in 0..count {
        for part in 0..1 + random.below(3) {
            let mask = if random.below(3) == 0 { !0 } else { random.below(1 << LINE) as u16 };
            let offset = random.below(len) as i32 - (LINE * step / 2) as i32;
            let inside = |lane: &usize| (0..len as i32).contains(&(offset + (lane * step) as i32));
            let mask = (0..LINE).filter(inside).fold(0, |inside, lane| inside | mask & 1 << lane);
            pieces.push(Piece { offset, mask, line: line as u16, begins: part == 0 });
        }
    }
    pieces
}

/// What products are made of: `W` lines for each term, whose offsets are below `span`.
struct Product<const W: usize> {
    a: Vec<f32>,
    rows: [usize; HEIGHT],
    offsets: Vec<u32>,
    b: Vec<Line>,
    before: Block,
}

impl<const W: usize> Product<W> {
    fn new(random: &mut Random, terms: usize, span: usize) -> Product<W> {
        Product {
            a: floats(random, 5000),
            rows: std::array::from_fn(|_| random.below(2000)),
            offsets: (0..terms).map(|_| random.below(span) as u32).collect(),
            b: lines(random, W * terms),
            before: std::array::from_fn(|_| std::array::from_fn(|_| [random.below(9) as f32; LINE])),
        }
    }

    fn terms(&self) -> Terms {
        Terms::new(self.offsets.clone())
    }

    /// The first `N` elements of line `v` of a row.
    fn sums<const N: usize>(&self, row: usize, v: usize, accumulate: bool) -> [f32; N] {
        let element = |lane: usize| {
            let terms = self.offsets.iter().zip(self.b.chunks(W));
            let term = |sum, (offset, b): (&u32, &[Line])| self.a[self.rows[row] + *offset as usize].mul_add(b[v][lane], sum);
            let sum = terms.fold(0.0_f32, term);
            if accumulate { self.before[row][v][lane] + sum } else { sum }
        };
        std::array::from_fn(element)
    }

    fn check(&self) {
        for (vectors, accumulate) in Vectors::all().flat_map(|vectors| [(vectors, false), (vectors, true)]) {
            let mut block = self.before;
            vectors.multiply::<W>(&self.a, self.rows, &self.terms(), &self.b, &mut block, accumulate);
            for (row, v) in (0..HEIGHT).flat_map(|row| (0..W).map(move |v| (row, v))) {
                let wanted: Line = self.sums(row, v, accumulate);
                assert_eq!(bits(&[block[row][v]]), bits(&[wanted]), "{} terms in {W} lines by {vectors:?}", self.offsets.len());
            }
        }
    }
}

/// Numbers of terms, and what their offsets are below: near each other, and so far apart that they
/// are prefetched.
fn terms() -> impl Iterator<Item = (usize, usize)> {
    [0, 1, 2, 31, 63, 64, 65, 95, 96, 97, 160, 193, 300].into_iter().flat_map(|terms| [(terms, 300), (terms, 3000)])
}

#[test]
fn products_add_up_in_the_order_of_their_terms() {
    let mut random = Random(3);
    for (terms, span) in terms() {
        Product::<1>::new(&mut random, terms, span).check();
        Product::<2>::new(&mut random, terms, span).check();
        Product::<WIDTH>::new(&mut random, terms, span).check();
    }
}

#[test]
fn halves_of_lines_add_up_in_the_order_of_their_terms() {
    let mut random = Random(11);
    for (terms, span) in terms() {
        let product = Product::<1>::new(&mut random, terms, span);
        let halves: Vec<[f32; HALF]> = product.b.iter().map(|line| line.as_chunks().0[0]).collect();
        for (vectors, accumulate) in Vectors::all().flat_map(|vectors| [(vectors, false), (vectors, true)]) {
            let mut block = product.before;
            let b = [halves.as_flattened(), &[f32::NAN; HALF + 5]].concat();
            vectors.multiply_halves(&product.a, product.rows, &product.terms(), &b, &mut block, accumulate);
            for (row, lines) in block.iter_mut().enumerate() {
                let wanted: [f32; HALF] = product.sums(row, 0, accumulate);
                assert_eq!(bits(&[lines[0].as_chunks::<HALF>().0[0]]), bits(&[wanted]), "{terms} terms by {vectors:?}");
                lines[0].as_chunks_mut().0[0] = product.before[row][0].as_chunks::<HALF>().0[0];
            }
            assert_eq!(block, product.before, "nothing else is written by {vectors:?}");
        }
    }
}

#[test]
fn pieces_are_packed_and_stored_where_their_lanes_are() {
    let mut random = Random(5);
    for (vectors, step) in Vectors::all().flat_map(|vectors| [1, 2, 3, 5].map(|step| (vectors, step))) {
        for _ in 0..40 {
            let (count, channels, plane) = (1 + random.below(5), 1 + random.below(3), 40 + random.below(200));
            let data = floats(&mut random, 7 + channels * plane);
            let pieces = pieces(&mut random, count, step, plane);
            let mut packed = vec![[9.0; LINE]; channels * count];
            vectors.pack(&Planes { data: &data, start: 7, plane, step }, &pieces, &mut packed, count);
            let mut wanted = vec![[0.0; LINE]; channels * count];
            for (channel, piece) in (0..channels).flat_map(|channel| pieces.iter().map(move |piece| (channel, piece))) {
                for lane in lanes(piece) {
                    let at = (7 + channel * plane + lane * step) as i32 + piece.offset;
                    wanted[channel * count + usize::from(piece.line)][lane] = data[at as usize];
                }
            }
            assert_eq!(bits(&packed), bits(&wanted), "steps of {step} by {vectors:?}");

            let (mut stored, line) = (data[..plane].to_vec(), lines(&mut random, 1)[0]);
            let mut wanted = stored.clone();
            for piece in &pieces {
                vectors.store(&line, piece, step, &mut stored);
                lanes(piece).for_each(|lane| wanted[((lane * step) as i32 + piece.offset) as usize] = line[lane]);
            }
            assert_eq!(stored, wanted, "steps of {step} by {vectors:?}");
        }
    }
}

#[test]
fn rows_become_columns() {
    let mut random = Random(7);
    for vectors in Vectors::all() {
        let block: Vec<Line> = lines(&mut random, 2 * HEIGHT * WIDTH);
        let blocks: [Block; 2] =
            std::array::from_fn(|b| std::array::from_fn(|row| std::array::from_fn(|v| block[(b * HEIGHT + row) * WIDTH + v])));
        for v in 0..WIDTH {
            let mut columns = [[0.0; LINE]; LINE];
            vectors.columns(&blocks, v, &mut columns);
            let wanted: [Line; LINE] =
                std::array::from_fn(|col| std::array::from_fn(|row| blocks[row / HEIGHT][row % HEIGHT][v][col]));
            assert_eq!(columns, wanted, "{vectors:?}");
        }
        let lengths = [(0, 0, 1), (0, 1, 1), (0, 7, 2), (0, 8, 1), (0, 16, 3), (0, 37, 2), (0, 40, 1), (16, 16, 1), (33, 50, 3)];
        for (shortest, longest, width) in lengths {
            let data: [Vec<f32>; LINE] = std::array::from_fn(|_| {
                let count = shortest + random.below(longest - shortest + 1);
                floats(&mut random, count)
            });
            let rows = data.each_ref().map(Vec::as_slice);
            let terms = rows.iter().map(|row| row.len()).max().unwrap_or(0);
            let mut packed = vec![[9.0; LINE]; terms * width];
            vectors.interleave(&rows, &mut packed, width);
            for (k, line) in packed.iter().enumerate() {
                let term = |row: &[f32]| row.get(k / width).copied().unwrap_or(0.0);
                let wanted = if k % width == 0 { rows.map(term) } else { [9.0; LINE] };
                assert_eq!(*line, wanted, "{longest} terms, {width} apart, by {vectors:?}");
            }
        }
    }
}

#[test]
fn columns_stand_side_by_side() {
    let mut random = Random(13);
    for (vectors, count) in Vectors::all().flat_map(|vectors| (0..=LINE).map(move |count| (vectors, count))) {
        let lines = lines(&mut random, count);
        let mut out = vec![9.0; (LINE - 1) * count + LINE];
        vectors.side_by_side(&lines, &mut out);
        for (column, own) in out.chunks(count.max(1)).enumerate().take(LINE) {
            let wanted: Vec<f32> = lines.iter().map(|line| line[column]).collect();
            assert_eq!(own[..count], wanted, "{count} lines by {vectors:?}");
        }
    }
}

#[test]
fn lines_are_stored_past_the_caches_wherever_they_are() {
    let mut random = Random(9);
    for vectors in Vectors::all() {
        with_lines(3, |memory: &mut [Line]| {
            let memory = memory.as_flattened_mut();
            for start in [0, 1, 8, 16] {
                let line = lines(&mut random, 1)[0];
                vectors.stream(&line, memory[start..].first_chunk_mut().expect("there is room for a line"));
                vectors.settle();
                assert_eq!(memory[start..start + LINE], line, "{vectors:?}");
            }
        });
    }
}

/// Whether all that the processor has refuses what `f` does.
fn is_refused(f: impl Fn(Vectors) + std::panic::RefUnwindSafe) -> bool {
    Vectors::all().all(|vectors| std::panic::catch_unwind(|| f(vectors)).is_err())
}

#[test]
fn what_lies_outside_is_refused() {
    let (data, line) = ([0.0; 64], [0.0; LINE]);
    let multiply = |row: usize, lines: usize| {
        is_refused(move |vectors| {
            let mut block = [[[0.0; LINE]; WIDTH]; HEIGHT];
            vectors.multiply::<1>(&[0.0; 64], [row; HEIGHT], &Terms::new(vec![0, 10]), &vec![line; lines], &mut block, false);
        })
    };
    assert!(multiply(54, 2) && multiply(usize::MAX - 5, 2) && multiply(0, 1) && multiply(0, 3));
    let halves = |row: usize, elements: usize| {
        is_refused(move |vectors| {
            let (mut block, terms) = ([[[0.0; LINE]; WIDTH]; HEIGHT], Terms::new(vec![0, 10]));
            vectors.multiply_halves(&[0.0; 64], [row; HEIGHT], &terms, &vec![0.0; elements], &mut block, false);
        })
    };
    assert!(halves(54, 2 * HALF) && halves(usize::MAX - 5, 2 * HALF) && halves(0, 2 * HALF - 1));
    let pack = |offset: i32, start: usize, plane: usize, line: u16| {
        is_refused(move |vectors| {
            let piece = Piece { offset, mask: !0, line, begins: true };
            vectors.pack(&Planes { data: &data, start, plane, step: 1 }, &[piece], &mut [[0.0; LINE]; 4], 1);
        })
    };
    assert!(pack(-1, 0, 16, 0) && pack(1, 0, 16, 0) && pack(0, 0, usize::MAX / 3 + 1, 0) && pack(0, 0, 16, 1));
    let store = |offset: i32, step: usize| {
        is_refused(move |vectors| {
            vectors.store(&line, &Piece { offset, mask: !0, line: 0, begins: true }, step, &mut [0.0; 64]);
        })
    };
    let side_by_side =
        |lines: usize, room: usize| is_refused(move |vectors| vectors.side_by_side(&vec![line; lines], &mut vec![0.0; room]));
    assert!(side_by_side(9, 150) && side_by_side(0, 15) && side_by_side(17, 1000));
    assert!(store(-1, 1) && store(49, 1) && store(4, 4) && store(0, usize::MAX));
}
