//! Collectives among threads: results, order, failure.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use shardc_executor::comm::{Communicator, Traffic};
use shardc_executor::world::World;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Collective, CollectiveKind, ReduceKind};
use shardc_ir::mesh::{AxisId, Mesh};
use std::sync::Arc;
use std::thread;

fn mesh() -> Mesh {
    Mesh::new([("dp".to_string(), 2), ("tp".to_string(), 3)], 1)
}

/// Runs `f` on every rank of the mesh at once.
fn on_ranks<R: Send>(f: impl Fn(u64, &mut Communicator) -> R + Sync) -> Vec<R> {
    let world = Arc::new(World::default());
    thread::scope(|scope| {
        let spawn = |rank| {
            let (world, f) = (world.clone(), &f);
            scope.spawn(move || f(rank, &mut Communicator::new(world, mesh(), rank)))
        };
        let threads: Vec<_> = (0..mesh().world_size()).map(spawn).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn collective(kind: CollectiveKind, axes: &[u8], count: u64) -> Collective {
    Collective { kind, op: ReduceKind::Sum, axes: axes.iter().map(|a| AxisId(*a)).collect(), dtype: DType::F32, count }
}

/// What `rank` holds at `i`: sums of it depend on their order.
fn value(rank: u64, i: u64) -> f32 {
    (1.0 + rank as f32 * 0.37) / (1.0 + i as f32) + if rank == 1 { 3e6 } else { 0.0 }
}

fn values(rank: u64, n: u64) -> Vec<f32> {
    (0..n).map(|i| value(rank, i)).collect()
}

fn bytes(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

fn bytes_mut(values: &mut [f32]) -> &mut [u8] {
    bytemuck::cast_slice_mut(values)
}

#[test]
fn every_kind_gives_what_it_says() {
    // Sizes below and above what is shared out, and beyond one piece.
    let large = [(vec![0u8], 1_100_001)].into_iter();
    let small = [0, 1, 13, 20_001].into_iter().flat_map(|n| [vec![0u8], vec![1], vec![0, 1], vec![1, 0]].map(|axes| (axes, n)));
    for (axes, n) in small.chain(large) {
        {
            let ids: Vec<AxisId> = axes.iter().map(|a| AxisId(*a)).collect();
            on_ranks(|rank, communicator| {
                let group = mesh().group(rank, &ids);
                let g = group.len() as u64;
                let me = group.iter().position(|r| *r == rank).unwrap() as u64;
                let total = |i: u64| group.iter().skip(1).fold(value(group[0], i), |sum, r| sum + value(*r, i));
                for round in 0..3 {
                    let mut data = values(rank, n);
                    communicator.run(&collective(CollectiveKind::AllReduce, &axes, n), &[], bytes_mut(&mut data)).unwrap();
                    assert!((0..n).all(|i| data[i as usize] == total(i)), "all-reduce of {n}, round {round}");

                    let mut all = vec![0.0; (n * g) as usize];
                    let call = collective(CollectiveKind::AllGather, &axes, n);
                    communicator.run(&call, bytes(&values(rank, n)), bytes_mut(&mut all)).unwrap();
                    let want: Vec<f32> = group.iter().flat_map(|r| values(*r, n)).collect();
                    assert!(all == want, "all-gather of {n}");

                    let mut part = vec![0.0; n as usize];
                    let call = collective(CollectiveKind::ReduceScatter, &axes, n);
                    communicator.run(&call, bytes(&values(rank, n * g)), bytes_mut(&mut part)).unwrap();
                    assert!((0..n).all(|i| part[i as usize] == total(me * n + i)), "reduce-scatter of {n}");

                    let mut parts = vec![0.0; (n * g) as usize];
                    let call = collective(CollectiveKind::AllToAll, &axes, n);
                    communicator.run(&call, bytes(&values(rank, n * g)), bytes_mut(&mut parts)).unwrap();
                    let want: Vec<f32> =
                        group.iter().flat_map(|r| values(*r, n * g)[(me * n) as usize..][..n as usize].to_vec()).collect();
                    assert!(parts == want, "all-to-all of {n}");
                }
            });
        }
    }
}

#[test]
fn maxima_and_truth_values() {
    on_ranks(|rank, communicator| {
        let all = |dtype, op| Collective { op, dtype, ..collective(CollectiveKind::AllReduce, &[0, 1], 2) };
        let mut data = [rank as f32, -(rank as f32)];
        communicator.run(&all(DType::F32, ReduceKind::Max), &[], bytes_mut(&mut data)).unwrap();
        assert_eq!(data, [5.0, 0.0]);
        let mut data = [rank as i64, 7];
        communicator.run(&all(DType::I64, ReduceKind::Min), &[], bytemuck::cast_slice_mut(&mut data)).unwrap();
        assert_eq!(data, [0, 7]);
        let mut data = [u8::from(rank == 4), 0];
        communicator.run(&all(DType::Bool, ReduceKind::Max), &[], &mut data).unwrap();
        assert_eq!(data, [1, 0]);
    });
}

#[test]
fn bytes_are_those_of_a_ring() {
    let traffic = on_ranks(|_, communicator| {
        let mut data = [0.0; 30];
        for _ in 0..2 {
            communicator.run(&collective(CollectiveKind::AllReduce, &[1], 30), &[], bytes_mut(&mut data)).unwrap();
        }
        communicator.run(&collective(CollectiveKind::AllGather, &[0], 15), bytes(&[1.0; 15]), bytes_mut(&mut data)).unwrap();
        communicator.traffic().clone()
    });
    assert_eq!(traffic[2][&(CollectiveKind::AllReduce, vec![AxisId(1)])], Traffic { calls: 2, bytes_sent: 2 * 160 });
    assert_eq!(traffic[2][&(CollectiveKind::AllGather, vec![AxisId(0)])], Traffic { calls: 1, bytes_sent: 60 });
}

#[test]
fn members_that_call_different_things_are_told() {
    let results = on_ranks(|rank, communicator| {
        let mut data = [0.0; 8];
        let count = if rank == 3 { 4 } else { 8 };
        communicator.run(&collective(CollectiveKind::AllReduce, &[0, 1], count), &[], bytes_mut(&mut data))
    });
    assert!(results.iter().all(Result::is_err));
    assert!(results.iter().any(|r| r.as_ref().is_err_and(|e| e.contains("different collectives"))));
}
