//! How fast collectives among threads are beside copies from memory to memory:
//! `cargo bench -p shardc-executor --bench collectives`.

use shardc_executor::arena::Operands;
use shardc_executor::comm::Communicator;
use shardc_executor::world::World;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Collective, CollectiveKind};
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::reduce_kind::ReduceKind;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

/// The bytes that a rank contributes to a call.
const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 32 << 20];

fn main() {
    let ranks = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(2);
    let copied = together(ranks, |_, barrier| {
        let (from, mut to) = (vec![1u8; 64 << 20], vec![0u8; 64 << 20]);
        least(8, barrier, || black_box(&mut to[..]).copy_from_slice(black_box(&from)))
    });
    let rate = (ranks * 2 * (64 << 20)) as f64 / copied;
    println!("{ranks} ranks together read and write {:.1} GB/s in copies", rate / 1e9);
    println!("{:16} {:>10} {:>12} {:>12} {:>8}", "kind", "KiB", "us", "us at least", "times");
    for kind in [CollectiveKind::AllReduce, CollectiveKind::ReduceScatter, CollectiveKind::AllGather, CollectiveKind::AllToAll] {
        for size in SIZES {
            // What a rank reads and writes of its own memory.
            let (read, written) = match kind {
                CollectiveKind::ReduceScatter => (size, size / ranks),
                CollectiveKind::AllGather => (size / ranks, size),
                _ => (size, size),
            };
            let seconds = call(kind, ranks, read, written);
            let floor = (ranks * (read + written)) as f64 / rate;
            let name = format!("{kind:?}");
            println!("{name:16} {:10} {:12.1} {:12.1} {:8.2}", size >> 10, seconds * 1e6, floor * 1e6, seconds / floor);
        }
    }
}

/// The shortest time of a call, in seconds.
fn call(kind: CollectiveKind, ranks: usize, read: usize, written: usize) -> f64 {
    let mesh = Mesh::new([("dp".to_string(), ranks as u64)], 1);
    let world = Arc::new(World::default());
    world.begin(ranks as u64);
    let elements = read.min(written) / 4 / if kind == CollectiveKind::AllToAll { ranks } else { 1 };
    let (op, axes) = (ReduceKind::Sum, vec![AxisId(0)]);
    let call = Collective { kind, op, axes, dtype: DType::F32, counts: vec![elements as u64] };
    together(ranks, |rank, barrier| {
        let mut communicator = Communicator::new(world.clone(), mesh.clone(), rank as u64);
        let (source, mut destination) = (vec![0u8; read], vec![0u8; written]);
        least(if read < 8 << 20 { 200 } else { 20 }, barrier, || {
            let reads = vec![if kind == CollectiveKind::AllReduce { &[][..] } else { &source[..] }];
            communicator.run(&call, Operands { reads, writes: vec![&mut destination[..]] }).expect("all ranks call it");
        })
    })
}

/// Runs `f` on so many threads, and returns the longest of their times.
fn together(ranks: usize, f: impl Fn(usize, &Barrier) -> f64 + Sync) -> f64 {
    let barrier = Barrier::new(ranks);
    thread::scope(|scope| {
        let spawn = |rank| {
            scope.spawn({
                let (f, barrier) = (&f, &barrier);
                move || f(rank, barrier)
            })
        };
        let threads: Vec<_> = (0..ranks).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).fold(0.0, f64::max)
    })
}

/// The shortest of some runs, which all threads begin together.
fn least(runs: usize, barrier: &Barrier, mut f: impl FnMut()) -> f64 {
    let mut least = f64::INFINITY;
    for _ in 0..runs {
        barrier.wait();
        let start = Instant::now();
        f();
        least = least.min(start.elapsed().as_secs_f64());
    }
    least
}
