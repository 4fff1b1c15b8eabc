//! Collectives and messages among threads: results, order, failure, whatever the timing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use shardc_executor::arena::Operands;
use shardc_executor::comm::{Communicator, Traffic};
use shardc_executor::transfer::Transfer;
use shardc_executor::world::World;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Collective, CollectiveKind};
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

fn mesh() -> Mesh {
    Mesh::new([("dp".to_string(), 2), ("tp".to_string(), 3)], 1)
}

/// Runs `f` on every rank of the mesh at once.
fn on_ranks<R: Send>(f: impl Fn(u64, &mut Communicator) -> R + Sync) -> Vec<R> {
    within(World::default(), &mesh(), f)
}

/// Runs `f` on every rank of a mesh at once.
fn within<R: Send>(world: World, mesh: &Mesh, f: impl Fn(u64, &mut Communicator) -> R + Sync) -> Vec<R> {
    let world = Arc::new(world);
    world.begin(mesh.world_size());
    thread::scope(|scope| {
        let spawn = |rank| {
            let (world, f) = (world.clone(), &f);
            scope.spawn(move || {
                let result = f(rank, &mut Communicator::new(world.clone(), mesh.clone(), rank));
                world.end(rank);
                result
            })
        };
        let threads: Vec<_> = (0..mesh.world_size()).map(spawn).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn collective(kind: CollectiveKind, axes: &[u8], count: u64) -> Collective {
    Collective {
        kind,
        op: ReduceKind::Sum,
        axes: axes.iter().map(|a| AxisId(*a)).collect(),
        dtype: DType::F32,
        counts: vec![count],
    }
}

/// Makes a call of one operand.
fn run(communicator: &mut Communicator, call: &Collective, source: &[u8], destination: &mut [u8]) -> Result<(), Reason> {
    communicator.run(call, Operands { reads: vec![source], writes: vec![destination] })
}

/// The number that `rank` holds at `i`: sums of such numbers depend on their order.
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
                    run(communicator, &collective(CollectiveKind::AllReduce, &axes, n), &[], bytes_mut(&mut data)).unwrap();
                    assert!((0..n).all(|i| data[i as usize] == total(i)), "all-reduce of {n}, round {round}");

                    let mut all = vec![0.0; (n * g) as usize];
                    let call = collective(CollectiveKind::AllGather, &axes, n);
                    run(communicator, &call, bytes(&values(rank, n)), bytes_mut(&mut all)).unwrap();
                    let want: Vec<f32> = group.iter().flat_map(|r| values(*r, n)).collect();
                    assert!(all == want, "all-gather of {n}");

                    let mut part = vec![0.0; n as usize];
                    let call = collective(CollectiveKind::ReduceScatter, &axes, n);
                    run(communicator, &call, bytes(&values(rank, n * g)), bytes_mut(&mut part)).unwrap();
                    assert!((0..n).all(|i| part[i as usize] == total(me * n + i)), "reduce-scatter of {n}");

                    let mut parts = vec![0.0; (n * g) as usize];
                    let call = collective(CollectiveKind::AllToAll, &axes, n);
                    run(communicator, &call, bytes(&values(rank, n * g)), bytes_mut(&mut parts)).unwrap();
                    let want: Vec<f32> =
                        group.iter().flat_map(|r| values(*r, n * g)[(me * n) as usize..][..n as usize].to_vec()).collect();
                    assert!(parts == want, "all-to-all of {n}");
                }
            });
        }
    }
}

/// One call over several operands gives the bits and sends the bytes of one over all of them.
#[test]
fn operands_of_one_call_are_one() {
    for sizes in [vec![5, 0, 9_000, 1], vec![9_000, 0, 9_000], vec![1; 100], vec![1_100_001, 3, 700_000]] {
        let total: u64 = sizes.iter().sum();
        on_ranks(|rank, communicator| {
            let mut whole = values(rank, total);
            let mut rest = &whole[..];
            let mut apart: Vec<Vec<f32>> = vec![];
            for size in &sizes {
                let (part, behind) = rest.split_at(*size as usize);
                apart.push(part.to_vec());
                rest = behind;
            }
            let call = |counts| Collective { counts, ..collective(CollectiveKind::AllReduce, &[0, 1], 0) };
            run(communicator, &call(vec![total]), &[], bytes_mut(&mut whole)).unwrap();
            let sent = |communicator: &Communicator| communicator.traffic().values().map(|t| t.bytes_sent).sum::<u64>();
            let once = sent(communicator);
            let writes = apart.iter_mut().map(|part| bytes_mut(part)).collect();
            let reads = vec![&[] as &[u8]; sizes.len()];
            communicator.run(&call(sizes.clone()), Operands { reads, writes }).unwrap();
            assert!(apart.concat() == whole);
            assert_eq!(sent(communicator), 2 * once);
        });
    }
}

#[test]
fn several_operands_of_every_kind() {
    use CollectiveKind::{AllGather, AllToAll, ReduceScatter};
    on_ranks(|rank, communicator| {
        let kinds = [(AllGather, 1, 2), (ReduceScatter, 2, 1), (AllToAll, 2, 2)];
        for (counts, (kind, read, written)) in
            [vec![3, 8], vec![9_000, 0, 9_001]].into_iter().flat_map(|c| kinds.map(|kind| (c.clone(), kind)))
        {
            let make = |counts| Collective { counts, ..collective(kind, &[0], 0) };
            let sources: Vec<Vec<f32>> = counts.iter().map(|n| values(rank, n * read)).collect();
            let mut apart: Vec<Vec<f32>> = counts.iter().map(|n| vec![0.0; (n * written) as usize]).collect();
            let mut together = apart.clone();
            for ((source, destination), n) in sources.iter().zip(&mut apart).zip(&counts) {
                run(communicator, &make(vec![*n]), bytes(source), bytes_mut(destination)).unwrap();
            }
            let reads = sources.iter().map(|source| bytes(source)).collect();
            let writes = together.iter_mut().map(|part| bytes_mut(part)).collect();
            communicator.run(&make(counts.clone()), Operands { reads, writes }).unwrap();
            assert!(apart == together, "{kind:?} of {counts:?}");
        }
    });
}

#[test]
fn maxima_and_truth_values() {
    on_ranks(|rank, communicator| {
        let all = |dtype, op| Collective { op, dtype, ..collective(CollectiveKind::AllReduce, &[0, 1], 2) };
        let mut data = [rank as f32, -(rank as f32)];
        run(communicator, &all(DType::F32, ReduceKind::Max), &[], bytes_mut(&mut data)).unwrap();
        assert_eq!(data, [5.0, 0.0]);
        let mut data = [rank as i64, 7];
        run(communicator, &all(DType::I64, ReduceKind::Min), &[], bytemuck::cast_slice_mut(&mut data)).unwrap();
        assert_eq!(data, [0, 7]);
        let mut data = [u8::from(rank == 4), 0];
        run(communicator, &all(DType::Bool, ReduceKind::Max), &[], &mut data).unwrap();
        assert_eq!(data, [1, 0]);
    });
}

#[test]
fn bytes_are_those_of_a_ring() {
    let traffic = on_ranks(|_, communicator| {
        let mut data = [0.0; 30];
        for _ in 0..2 {
            run(communicator, &collective(CollectiveKind::AllReduce, &[1], 30), &[], bytes_mut(&mut data)).unwrap();
        }
        run(communicator, &collective(CollectiveKind::AllGather, &[0], 15), bytes(&[1.0; 15]), bytes_mut(&mut data)).unwrap();
        communicator.traffic().clone()
    });
    assert_eq!(traffic[2][&(CollectiveKind::AllReduce.into(), vec![AxisId(1)])], Traffic { calls: 2, bytes_sent: 2 * 160 });
    assert_eq!(traffic[2][&(CollectiveKind::AllGather.into(), vec![AxisId(0)])], Traffic { calls: 1, bytes_sent: 60 });
}

#[test]
fn members_that_call_different_things_are_told() {
    let results = on_ranks(|rank, communicator| {
        let mut data = [0.0; 8];
        let count = if rank == 3 { 4 } else { 8 };
        run(communicator, &collective(CollectiveKind::AllReduce, &[0, 1], count), &[], bytes_mut(&mut data))
    });
    assert!(results.iter().all(Result::is_err));
    assert!(results.iter().any(|r| r.as_ref().is_err_and(|e| e.to_string().contains("different collectives"))));
}

/// Random pauses before and after every meeting change no bit and hang nobody, in groups of any
/// size.
#[test]
fn delays_change_nothing() {
    let call = |kind, axes: &[u8], n: u64| collective(kind, axes, n);
    for sizes in [[2, 1], [3, 1], [2, 2], [4, 2]] {
        let mesh = Mesh::new([("dp".to_string(), sizes[0]), ("tp".to_string(), sizes[1])], 1);
        let run = |rank: u64, communicator: &mut Communicator| {
            let mut all = vec![];
            for (axes, n) in [(vec![0u8], 50), (vec![1], 9000), (vec![1, 0], 20_001), (vec![0, 1], 7)] {
                let ids: Vec<AxisId> = axes.iter().map(|a| AxisId(*a)).collect();
                let g = mesh.group(rank, &ids).len() as u64;
                let mut data = values(rank, n);
                run(communicator, &call(CollectiveKind::AllReduce, &axes, n), &[], bytes_mut(&mut data)).unwrap();
                let mut part = vec![0.0; n as usize];
                let source = values(rank, n * g);
                run(communicator, &call(CollectiveKind::ReduceScatter, &axes, n), bytes(&source), bytes_mut(&mut part)).unwrap();
                let mut gathered = vec![0.0; (n * g) as usize];
                run(communicator, &call(CollectiveKind::AllGather, &axes, n), bytes(&part), bytes_mut(&mut gathered)).unwrap();
                let next = (rank + 1) % mesh.world_size();
                let last = (rank + mesh.world_size() - 1) % mesh.world_size();
                let mut message = vec![0.0; 16];
                let (send, receive) = (bytes(&data[..7]), bytes_mut(&mut message[..7]));
                let ring = &mut [
                    Transfer::Send { to: next, dtype: DType::F32, bytes: send },
                    Transfer::Receive { from: last, dtype: DType::F32, bytes: receive },
                ];
                communicator.exchange(ring).unwrap();
                all.push([data, part, gathered, message].concat().iter().map(|v| v.to_bits()).collect::<Vec<u32>>());
            }
            all
        };
        let calm = within(World::default(), &mesh, run);
        for seed in 0..6 {
            let delayed = within(World::with_delays(seed, Duration::from_micros(400)), &mesh, run);
            assert!(delayed == calm, "{sizes:?}, seed {seed}");
        }
    }
}

/// A message is taken in the order in which it was sent; in a strict world a send ends after its
/// receive has begun.
#[test]
fn messages_arrive_in_order() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let mesh = Mesh::new([("pp".to_string(), 3)], 1);
    let receiving = AtomicBool::new(false);
    let arrive = |world: World, is_strict: bool| {
        within(world, &mesh, |rank, communicator| match rank {
            0 => {
                communicator.send(2, DType::F32, bytes(&[1.0, 2.0])).unwrap();
                assert!(!is_strict || receiving.swap(false, Ordering::SeqCst), "the send is a rendezvous");
                communicator.send(2, DType::I64, bytemuck::cast_slice(&[3i64])).unwrap();
            }
            1 => {
                let parts = [[4.0f32], [5.0]];
                let send = |i: usize| Transfer::Send { to: 2, dtype: DType::F32, bytes: bytes(&parts[i]) };
                communicator.exchange(&mut [send(0), send(1)]).unwrap();
            }
            _ => {
                thread::sleep(Duration::from_millis(20));
                receiving.store(true, Ordering::SeqCst);
                let (mut first, mut second, mut others) = ([0.0f32; 2], [0i64], [0.0f32; 2]);
                communicator.receive(0, DType::F32, bytes_mut(&mut first)).unwrap();
                for other in others.chunks_mut(1) {
                    communicator.receive(1, DType::F32, bytes_mut(other)).unwrap();
                }
                communicator.receive(0, DType::I64, bytemuck::cast_slice_mut(&mut second)).unwrap();
                assert_eq!((first, second, others), ([1.0, 2.0], [3], [4.0, 5.0]));
                assert!(communicator.send(2, DType::F32, &[]).is_err() && communicator.send(3, DType::F32, &[]).is_err());
            }
        })
    };
    arrive(World::default(), false);
    receiving.store(false, Ordering::SeqCst);
    arrive(World::default().strict(), true);
}

/// Neighbours that send to one another need not do so in one group; in a strict world they must,
/// and that they do not is told.
#[test]
fn sends_that_cross_belong_in_one_group() {
    let mesh = Mesh::new([("pp".to_string(), 2)], 1);
    let cross = |rank: u64, communicator: &mut Communicator| {
        let mut from = [0.0f32];
        communicator.send(1 - rank, DType::F32, bytes(&[rank as f32]))?;
        communicator.receive(1 - rank, DType::F32, bytes_mut(&mut from))
    };
    assert_eq!(within(World::default(), &mesh, cross), [Ok(()), Ok(())]);
    let crossed = within(World::default().strict(), &mesh, cross);
    let message = "no rank can go on: rank 0 waits to send to rank 1, rank 1 waits to send to rank 0";
    assert_eq!(crossed, [Err(message.into()), Err(message.into())]);
}

/// A wait for what can never come ends in one error on every rank: other sizes or types, other
/// partners, ranks that are gone.
#[test]
fn mismatches_end_as_errors() {
    type Ranks = fn(u64, &mut Communicator) -> Result<(), Reason>;
    let mesh = Mesh::new([("dp".to_string(), 2), ("tp".to_string(), 2)], 1);
    let cases: [(&str, Ranks); 8] = [
        ("rank 0 sends 4 f32 to rank 1, which expects 2 f32", |rank, c| match rank {
            0 => c.send(1, DType::F32, &[0; 16]),
            1 => c.receive(0, DType::F32, &mut [0; 8]),
            _ => c.receive(1, DType::F32, &mut [0; 8]),
        }),
        ("rank 2 sends 2 f32 to rank 3, which expects 1 i64", |rank, c| match rank {
            2 => c.send(3, DType::F32, &[0; 8]),
            3 => c.receive(2, DType::I64, &mut [0; 8]),
            _ => run(c, &collective(CollectiveKind::AllReduce, &[0, 1], 2), &[], &mut [0; 8]),
        }),
        ("rank 0 waits to receive from rank 1", |rank, c| match rank {
            0 => c.receive(1, DType::F32, &mut [0; 8]),
            _ => Ok(()),
        }),
        ("rank 3 waits to send to rank 0", |rank, c| match rank {
            3 => c.send(0, DType::F32, &[0; 8]),
            0 => c.receive(1, DType::F32, &mut [0; 8]),
            1 => c.receive(2, DType::F32, &mut [0; 8]),
            _ => c.receive(0, DType::F32, &mut [0; 8]),
        }),
        ("no rank can go on: rank 0 waits in a collective (AllReduce), rank 2 waits in a collective", |rank, c| {
            let axes: &[u8] = if rank == 0 { &[1] } else { &[0] };
            run(c, &collective(CollectiveKind::AllReduce, axes, 2), &[], bytes_mut(&mut [0.0; 2]))
        }),
        ("no rank can go on: rank 0 waits to update what ranks hold in common", |rank, c| match rank {
            0 => c.meet(&[AxisId(0)]),
            _ => Ok(()),
        }),
        ("its update failed", |rank, c| match rank {
            0 => Err("its update failed".into()),
            _ => c.meet(&[AxisId(0), AxisId(1)]),
        }),
        ("it is broken", |rank, c| match rank {
            0 => Err("it is broken".into()),
            _ => c.receive(0, DType::F32, &mut [0; 8]),
        }),
    ];
    for (expected, f) in cases {
        let world = Arc::new(World::default().strict());
        world.begin(4);
        let results: Vec<Result<(), Reason>> = thread::scope(|scope| {
            let spawn = |rank| {
                let (world, mesh) = (world.clone(), mesh.clone());
                scope.spawn(move || {
                    let result = f(rank, &mut Communicator::new(world.clone(), mesh, rank));
                    let result = result.inspect_err(|message| world.fail(rank, message.clone()));
                    world.end(rank);
                    result
                })
            };
            let threads: Vec<_> = (0..4).map(spawn).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let failure = world.failure().expect(expected);
        assert!(failure.fault.message.contains(expected), "{failure:?}, not {expected}");
        assert!(
            results.iter().flat_map(|r| r.as_ref().err()).all(|message| message.to_string() == failure.fault.message),
            "{results:?}"
        );
    }
}

/// A rank that breaks while the others read its memory is told in its own words, however late it
/// says them.
#[test]
fn a_panic_while_others_read_is_told() {
    let broken = "internal error: it broke";
    for seed in 0..8 {
        let world = Arc::new(World::with_delays(seed, Duration::from_millis(10)));
        world.begin(6);
        let results: Vec<Result<(), String>> = thread::scope(|scope| {
            let spawn = |rank| {
                let world = world.clone();
                scope.spawn(move || {
                    let n = 10_000;
                    let (source, mut sums) = (values(rank, 6 * n), vec![0.0; if rank == 1 { 1 } else { n as usize }]);
                    let call = collective(CollectiveKind::ReduceScatter, &[0, 1], n);
                    let mut communicator = Communicator::new(world.clone(), mesh(), rank);
                    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        run(&mut communicator, &call, bytes(&source), bytes_mut(&mut sums)).map_err(|error| error.to_string())
                    }));
                    let result = result.unwrap_or_else(|_| {
                        thread::sleep(Duration::from_millis(20));
                        Err(broken.to_string())
                    });
                    let _ = result.as_ref().inspect_err(|message| world.fail(rank, (*message).clone()));
                    world.end(rank);
                    result
                })
            };
            let threads: Vec<_> = (0..6).map(spawn).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(results, vec![Err(broken.to_string()); 6], "seed {seed}");
        assert_eq!(world.failure().map(|failure| failure.rank), Some(1));
    }
}

#[test]
fn axes_of_one_rank_change_no_group() {
    let mesh = Mesh::new([("dp".to_string(), 2), ("x".to_string(), 1)], 1);
    for seed in 0..8 {
        let world = World::with_delays(seed, Duration::from_micros(100));
        let wrong = within(world, &mesh, |rank, comm| {
            (0..400u64)
                .filter(|round| {
                    // The same members, named in three ways.
                    let axes: &[u8] = [&[0][..], &[0, 1], &[1, 0]][(*round % 3) as usize];
                    let mut sum = values(rank + round, 8_000);
                    run(comm, &collective(CollectiveKind::AllReduce, axes, 8_000), &[], bytes_mut(&mut sum)).unwrap();
                    let want = values(*round, 8_000).iter().zip(values(1 + round, 8_000)).map(|(a, b)| a + b).collect::<Vec<_>>();
                    sum != want
                })
                .count()
        });
        assert_eq!(wrong, [0, 0], "seed {seed}");
    }
}
