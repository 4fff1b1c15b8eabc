//! What lanes and threads do together, and what the run counts.

use super::{Access, bytes, drawn, job, operand, run, values};

#[test]
fn lanes_share_what_they_have() {
    let (n, threads) = (150usize, 192usize);
    let a: Vec<f64> = (0..n).map(|i| i as f64 * 1.25 - 7.0).collect();
    let operands = vec![
        operand("a", Access::Read, bytes!(a)),
        operand("sums", Access::Write, vec![0; 16]),
        operand("totals", Access::Update, vec![0; threads * 8]),
        operand("votes", Access::Write, vec![0; 24]),
        operand("fault", Access::Fault, vec![0; 4]),
    ];
    let ran = run(include_str!("warps.ptx"), &job("warps", 2, 96, 24, operands, &[n as i64]));
    let at = |i: usize| a.get(i).copied().unwrap_or(0.0);
    for block in 0..2 {
        let of = |w: usize| (0..32).map(|l| at(block * 96 + w * 32 + l)).sum::<f64>();
        assert_eq!(values!(f64, ran.operands[1])[block], of(0) + of(1) + of(2));
    }
    let totals = values!(i64, ran.operands[2]);
    for (i, got) in totals.iter().enumerate() {
        let (lane, thread, first) = (i % 32, i % 96, i / 32 * 32);
        let t: i64 = (first..first + 32).map(|j| at(j) as i64).sum();
        let above = t as i32 + if lane == 0 { thread } else { thread - 1 } as i32;
        let below = if lane < 29 { thread + 3 } else { thread };
        let eighth = thread / 8 * 8 + 5;
        let expected = t + (above as u32).wrapping_add(below as u32).wrapping_add(eighth as u32) as i64 + i64::from(first == 0);
        assert_eq!(*got, expected, "thread {i}");
    }
    for (w, got) in values!(u32, ran.operands[3]).iter().enumerate() {
        let vote = (0..32).filter(|l| (w * 32 + l) % 3 == 0).fold(0u32, |v, l| v | 1 << l);
        assert_eq!(*got, vote + vote.trailing_zeros());
    }
    assert_eq!(ran.operands[4], [0; 4]);
}

#[test]
fn arrays_are_indexed_at_run_time() {
    let a: Vec<i64> = drawn(64).iter().map(|x| (x >> 50) as i64).collect();
    let operands = vec![operand("a", Access::Read, bytes!(a)), operand("out", Access::Write, vec![0; 512])];
    let ran = run(include_str!("locals.ptx"), &job("locals", 1, 64, 0, operands, &[64, 100, 200, 7]));
    let out = values!(i64, ran.operands[1]);
    let value = |at: usize| {
        let x = a[at];
        let small: Vec<i64> = (0..16).map(|i| i64::from(a[(at + i) % 64] as u8)).collect();
        let mut steps = [100, 200, 14, 21, 28, 35];
        let mut f = [0.0f32, 1.0, 2.0, 3.0];
        for i in 0..x & 7 {
            steps[((x + i) % 6) as usize] += i;
            f[((i * x) & 3) as usize] *= 2.0;
        }
        let constant = [1.5f32, -2.25, 3.0, 0.125][(x & 3) as usize] as i64;
        let table = [3, -1, 4, 1, 5][(x % 5) as usize];
        steps[(x & 3) as usize] + small[(x & 15) as usize] + table + constant + f[(x >> 2 & 3) as usize] as i64
    };
    for (i, got) in out.iter().enumerate() {
        assert_eq!(*got, value(i ^ 1), "thread {i}");
    }
}

#[test]
fn rows_are_copied_in_vectors() {
    let n = 203;
    let a: Vec<f32> = (0..n).map(|i| i as f32 * 0.5).collect();
    let b: Vec<u16> = (0..n).map(|i| 0x3f80 + i as u16).collect();
    let d = vec![1u8; n];
    let operands = vec![
        operand("a", Access::Read, bytes!(a)),
        operand("b", Access::Read, bytes!(b)),
        operand("c", Access::Read, bytes!(b)),
        operand("d", Access::Read, d.clone()),
        operand("e", Access::Write, vec![9; n * 4]),
        operand("f", Access::Write, vec![9; n * 2]),
        operand("g", Access::Write, vec![9; n * 2]),
        operand("h", Access::Write, vec![9; n]),
    ];
    let ran = run(include_str!("locals.ptx"), &job("vectors", 1, 128, 0, operands, &[n as i64]));
    assert_eq!(values!(f32, ran.operands[4]), a);
    assert_eq!(values!(u16, ran.operands[6]), b);
    assert_eq!(ran.operands[7], d);
    // The last few numbers of 16 bits go through f32, plus 1, and back.
    let f = values!(u16, ran.operands[5]);
    let tail = n - n % 16;
    assert_eq!(f[..tail], b[..tail]);
    assert_ne!(f[tail..], b[tail..]);
}

#[test]
fn tiles_are_multiplied() {
    let small: Vec<f32> = drawn(384).iter().map(|x| (x % 17) as f32 - 8.0).collect();
    let (a, b) = small.split_at(256);
    let half = |x: &[f32]| x.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect::<Vec<u8>>();
    let operands =
        vec![operand("a", Access::Read, half(a)), operand("b", Access::Read, half(b)), operand("c", Access::Write, vec![0; 512])];
    let ran = run(include_str!("tiles.ptx"), &job("tiles", 1, 32, 1024, operands, &[]));
    let c = values!(f32, ran.operands[2]);
    for (i, got) in c.iter().enumerate() {
        let expected: f32 = (0..16).map(|k| a[i / 8 * 16 + k] * b[k * 8 + i % 8]).sum();
        assert_eq!(*got, expected, "element {i}");
    }
}

fn strided(by: i64) -> [f64; 2] {
    let operands = vec![operand("a", Access::Read, vec![0; 64 * 4 * by as usize]), operand("b", Access::Write, vec![0; 256])];
    let counts = run(include_str!("faults.ptx"), &job("strided", 1, 64, 0, operands, &[by])).counts;
    [0, 1].map(|operand| counts.operands[operand].used())
}

#[test]
fn sectors_are_counted() {
    assert_eq!([1, 2, 8].map(strided), [[1.0, 1.0], [0.5, 1.0], [0.125, 1.0]]);
}

fn banked(by: i64) -> f64 {
    let operands = vec![operand("b", Access::Write, vec![0; 128])];
    let ran = run(include_str!("faults.ptx"), &job("banked", 1, 32, 4096, operands, &[by]));
    assert_eq!(ran.operands[0], bytes!([1.0f32; 32]));
    ran.counts.wavefronts_each()
}

#[test]
fn banks_are_counted() {
    assert_eq!([0, 1, 2, 3, 8, 32].map(banked), [1.0, 1.0, 2.0, 1.0, 8.0, 32.0]);
    let a = vec![0; 4096];
    let operands = vec![operand("a", Access::Read, a), operand("b", Access::Write, vec![0; 4096])];
    let counts = run(include_str!("locals.ptx"), &job("wide", 1, 128, 4096, operands, &[1024])).counts;
    assert_eq!(counts.wavefronts_each(), 1.0);
    assert!(counts.operands.iter().all(|sectors| sectors.touched > 0 && sectors.used() == 1.0), "{counts:?}");
}
