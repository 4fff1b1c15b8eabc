//! Ranks with worlds of their own, as those of processes have them, against ranks that are threads
//! of one world: the same bits, the same traffic, and an end when one is missing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use shardc_executor::arena::Operands;
use shardc_executor::comm::{Communicator, TrafficTable};
use shardc_executor::transfer::Transfer;
use shardc_executor::wires::connect;
use shardc_executor::world::World;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Collective, CollectiveKind};
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_launch::control::{Control, Settings};
use shardc_launch::key::Key;
use shardc_launch::rendezvous::Rendezvous;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

fn mesh() -> Mesh {
    Mesh::new([("dp".to_string(), 2), ("tp".to_string(), 3)], 1)
}

/// Runs `f` on every rank as a thread of one world.
fn as_threads<R: Send>(f: impl Fn(u64, &mut Communicator) -> R + Sync) -> Vec<R> {
    let world = Arc::new(World::default());
    world.begin(mesh().world_size());
    on_each(|rank| {
        let result = f(rank, &mut Communicator::new(world.clone(), mesh(), rank));
        world.end(rank);
        result
    })
}

/// Runs `f` on every rank, each with a world of its own, connected by sockets.
fn as_processes<R: Send>(f: impl Fn(&Arc<Control>, &mut Communicator) -> R + Sync) -> Vec<R> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    on_each(|rank| {
        let (world_size, timeout) = (mesh().world_size(), Duration::from_secs(30));
        let settings = Settings { silence: Duration::from_secs(2) };
        let (key, stop) = (Key::default(), Arc::default());
        let wish = Rendezvous { rank, world_size, key, plans: [1; 32], timeout, settings, stop };
        let met = if rank == 0 { wish.host(listener.try_clone().unwrap(), b"") } else { wish.meet(&address, b"") };
        let (control, world) = (Arc::new(met.unwrap().control), Arc::new(World::default()));
        connect(&control, &world).unwrap();
        // Nobody fails before all are connected.
        control.barrier().unwrap();
        thread::sleep(Duration::from_millis(100));
        f(&control, &mut Communicator::new(world.clone(), mesh(), rank))
    })
}

fn on_each<R: Send>(f: impl Fn(u64) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let f = &f;
        let threads: Vec<_> = (0..mesh().world_size()).map(|rank| scope.spawn(move || f(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// `count` elements of `rank` whose sums depend on their order.
fn elements(rank: u64, dtype: DType, count: u64) -> Vec<u8> {
    let value = |i: u64| (1.0 + rank as f64 * 0.37) / (1.0 + i as f64) + if rank == 1 { 3e4 } else { 0.0 };
    let values = (0..count).map(value);
    match dtype {
        DType::F64 => values.flat_map(f64::to_le_bytes).collect(),
        DType::F32 => values.flat_map(|v| (v as f32).to_le_bytes()).collect(),
        DType::I64 => values.flat_map(|v| (v as i64).to_le_bytes()).collect(),
        // Any 16 bits with a small exponent are a number of either type.
        DType::BF16 | DType::F16 => values.flat_map(|v| (v.to_bits() as u16 & 0x3fff).to_le_bytes()).collect(),
        DType::Bool => values.map(|v| (v as u64 % 2) as u8).collect(),
    }
}

/// The results of a program of calls and messages, one after another, in which ranks differ in what
/// they do first.
fn all_calls(rank: u64, communicator: &mut Communicator) -> (Vec<Vec<u8>>, TrafficTable) {
    let mut results = vec![];
    let kinds = [CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::ReduceScatter, CollectiveKind::AllToAll];
    let types = [DType::F32, DType::BF16, DType::F64, DType::F16, DType::I64, DType::Bool];
    let cases = [0, 1, 13, 9_001].into_iter().flat_map(|n| types.map(|dtype| (n, dtype))).chain([(1_100_001, DType::F32)]);
    for (n, dtype) in cases {
        for axes in [vec![0], vec![1], vec![0, 1]] {
            let axes: Vec<AxisId> = axes.into_iter().map(AxisId).collect();
            let size = mesh().group(rank, &axes).len() as u64;
            for kind in kinds {
                let counts = vec![n, n / 3];
                let (given, got) = match kind {
                    CollectiveKind::AllReduce => (1, 1),
                    CollectiveKind::AllGather => (1, size),
                    CollectiveKind::ReduceScatter => (size, 1),
                    CollectiveKind::AllToAll => (size, size),
                };
                let sources: Vec<Vec<u8>> = counts.iter().map(|count| elements(rank, dtype, count * given)).collect();
                let sizes = counts.iter().map(|count| vec![0u64; ((count * got * dtype.bytes()).div_ceil(8)) as usize]);
                let mut places: Vec<Vec<u64>> = sizes.collect();
                let bytes = counts.iter().map(|count| (count * got * dtype.bytes()) as usize);
                let writes =
                    places.iter_mut().zip(bytes).map(|(place, bytes)| &mut bytemuck::cast_slice_mut(place)[..bytes]).collect();
                let call = Collective { kind, op: ReduceKind::Sum, axes: axes.clone(), dtype, counts: counts.clone() };
                let reads = sources.iter().map(Vec::as_slice).collect();
                communicator.run(&call, Operands { reads, writes }).unwrap();
                results.extend(places.into_iter().map(|place| bytemuck::cast_slice(&place).to_vec()));
            }
        }
    }
    // Around the circle, before a call on some ranks and behind it on others.
    let (next, before) = ((rank + 1) % 6, (rank + 5) % 6);
    let (given, mut got) = (elements(rank, DType::F32, 300_000), vec![0; 1_200_000]);
    communicator.send(next, DType::F32, &given).unwrap();
    let mut sum = elements(rank, DType::F32, 5);
    let call = |counts| Collective { kind: kinds[0], op: ReduceKind::Max, axes: vec![AxisId(0)], dtype: DType::F32, counts };
    if rank.is_multiple_of(2) {
        communicator.receive(before, DType::F32, &mut got).unwrap();
    }
    communicator.run(&call(vec![5]), Operands { reads: vec![&[]], writes: vec![&mut sum] }).unwrap();
    if !rank.is_multiple_of(2) {
        communicator.receive(before, DType::F32, &mut got).unwrap();
    }
    let (given, mut back) = (elements(rank, DType::I64, 7), vec![0; 56]);
    let transfers = &mut [
        Transfer::Send { to: before, dtype: DType::I64, bytes: &given },
        Transfer::Receive { from: next, dtype: DType::I64, bytes: &mut back },
    ];
    communicator.exchange(transfers).unwrap();
    results.extend([got, sum, back]);
    (results, communicator.traffic().clone())
}

#[test]
fn processes_give_the_bits_and_the_traffic_of_threads() {
    let threads = as_threads(all_calls);
    let processes = as_processes(|control, communicator| {
        let all = all_calls(control.rank(), communicator);
        control.finish().unwrap();
        all
    });
    for (rank, (of_threads, of_processes)) in threads.iter().zip(&processes).enumerate() {
        assert_eq!(of_threads.0.len(), of_processes.0.len());
        assert!(of_threads.0 == of_processes.0, "results of rank {rank}");
        assert_eq!(of_threads.1, of_processes.1, "traffic of rank {rank}");
    }
}

fn all_reduce(communicator: &mut Communicator, count: u64) -> Result<(), Reason> {
    let axes = vec![AxisId(0), AxisId(1)];
    let call = Collective { kind: CollectiveKind::AllReduce, op: ReduceKind::Sum, axes, dtype: DType::F32, counts: vec![count] };
    let mut data = elements(0, DType::F32, count);
    communicator.run(&call, Operands { reads: vec![&[]], writes: vec![&mut data] })
}

#[test]
fn who_waits_for_a_rank_that_is_gone_or_failed_goes_on() {
    for says in [None, Some("its data are bad")] {
        let seen = as_processes(|control, communicator| {
            all_reduce(communicator, 10).unwrap();
            if control.rank() == 4 {
                // The others have then ended their first call.
                thread::sleep(Duration::from_millis(300));
                says.map(|says| control.fail(says));
                return None;
            }
            let start = Instant::now();
            let why = all_reduce(communicator, 2_000_000).unwrap_err();
            assert_eq!(control.failure().unwrap().rank, 4);
            Some((why.to_string(), start.elapsed()))
        });
        assert_eq!(seen.iter().flatten().count(), 5);
        for (why, took) in seen.into_iter().flatten() {
            assert_eq!(why, says.unwrap_or("its process ended without a word"));
            assert!(took < Duration::from_secs(5), "{took:?}");
        }
    }
}

#[test]
fn members_in_different_calls_are_told() {
    let seen = as_processes(|control, communicator| {
        let why = all_reduce(communicator, 10 + control.rank() / 3).unwrap_err().to_string();
        control.fail(why.clone());
        why
    });
    assert!(seen.iter().all(|why| why == "members of a group call different collectives"), "{seen:?}");
}
