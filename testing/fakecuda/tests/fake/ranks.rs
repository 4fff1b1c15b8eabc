//! Communicators whose ranks are threads.

use super::cuda::{self, Answer, Dtype, Id, Mode, Op};
use super::right::{Device, N};
use super::{RIGHT_SEEDS, SEEDS, whole};

/// Runs a rank for each device, and gives what each ended with.
fn ranks(count: usize, rank: impl Fn(usize, &Device, Id) -> Answer + Sync) -> Vec<Answer> {
    let id = cuda::id().unwrap();
    let rank = &rank;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..count)
            .map(|number| scope.spawn(move || Device::new(number as i32).and_then(|device| rank(number, &device, id))))
            .collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Runs ranks in world after world, each of which must end without a report.
fn right(test: &str, count: usize, rank: impl Fn(usize, &Device, Id) -> Answer + Sync) {
    whole(test, || {
        cuda::set("DEVICES", &count.to_string());
        for seed in 0..RIGHT_SEEDS {
            cuda::reset(seed);
            let answers = ranks(count, &rank);
            assert!(
                answers.iter().all(Answer::is_ok) && cuda::reports().is_empty(),
                "seed {seed}: {answers:?} {}",
                cuda::reports()
            );
        }
    });
}

/// Runs two ranks that end with a report.
fn wrong(test: &str, report: &str, rank: impl Fn(usize, &Device, Id) -> Answer + Sync) {
    whole(test, || {
        cuda::set("PATIENCE", "150");
        for seed in 0..SEEDS {
            cuda::reset(seed);
            let answers = ranks(2, &rank);
            let reports = cuda::reports();
            assert!(answers.iter().any(Answer::is_err), "seed {seed}: {answers:?} {reports}");
            assert!(reports.contains(report), "seed {seed}: {answers:?} {reports}");
        }
    });
}

fn sum(device: &Device, comm: usize) -> Answer {
    cuda::all_reduce(device.x, device.y, N, Dtype::ncclFloat32, Op::ncclSum, comm, device.a)
}

#[test]
fn collectives_give_what_they_should() {
    right("ranks::collectives_give_what_they_should", 3, |rank, device, id| {
        let comm = cuda::join(id, 3, rank)?;
        assert_eq!(cuda::size_and_rank(comm)?, [3, rank as i32]);
        let (wide, own) = (cuda::allocate(3 * N * 4)?, 4 * (rank * N) as u64);
        for _ in 0..2 {
            sum(device, comm)?;
            assert_eq!(cuda::read_on(device.y, N, device.a)?[7], 21.0);
            cuda::all_gather(device.x, wide, N, comm, device.a)?;
            // In place.
            cuda::all_gather(wide + own, wide, N, comm, device.a)?;
            let all = cuda::read_on(wide, 3 * N, device.a)?;
            assert!((0..3 * N).all(|i| all[i] == (i % N) as f32));
            cuda::reduce_scatter(wide, device.y, N, comm, device.a)?;
            assert_eq!(cuda::read_on(device.y, N, device.a)?[7], 21.0);
            cuda::clear(device.y, N * 4, device.a)?;
            if rank == 2 {
                cuda::copy(device.y, device.x, N * 4, device.a)?;
            }
            cuda::broadcast(device.y, device.y, N, 2, comm, device.a)?;
            assert_eq!(cuda::read_on(device.y, N, device.a)?[7], 7.0);
        }
        cuda::finalize(comm)?;
        cuda::leave(comm)
    });
}

#[test]
fn messages_go_around_in_groups() {
    right("ranks::messages_go_around_in_groups", 3, |rank, device, id| {
        let comm = cuda::join(id, 3, rank)?;
        cuda::write_on(device.x, &[rank as f32; N], device.a)?;
        cuda::group_begin()?;
        cuda::send(device.x, N, (rank + 1) % 3, comm, device.a)?;
        cuda::recv(device.y, N, (rank + 2) % 3, comm, device.a)?;
        cuda::group_end()?;
        assert_eq!(cuda::read_on(device.y, N, device.a)?[3], ((rank + 2) % 3) as f32);
        // To itself.
        cuda::group_begin()?;
        cuda::recv(device.y, N, rank, comm, device.a)?;
        cuda::send(device.x, N, rank, comm, device.a)?;
        cuda::group_end()?;
        assert_eq!(cuda::read_on(device.y, N, device.a)?[3], rank as f32);
        cuda::leave(comm)
    });
}

#[test]
fn one_communicator_in_two_streams_is_told() {
    let report = "its communicator is in use by another stream";
    wrong("ranks::one_communicator_in_two_streams_is_told", report, |rank, device, id| {
        let (comm, z) = (cuda::join(id, 2, rank)?, cuda::allocate(N * 4)?);
        sum(device, comm)?;
        cuda::group_begin()?;
        cuda::send(device.x, N, 1 - rank, comm, device.b)?;
        cuda::recv(z, N, 1 - rank, comm, device.b)?;
        cuda::group_end()?;
        cuda::wait_stream(device.a)?;
        cuda::wait_stream(device.b)?;
        cuda::leave(comm)
    });
}

/// Waits until a communicator is ready.
fn settle(comm: usize) -> Answer {
    loop {
        match cuda::state(comm)? {
            0 => return Ok(()),
            7 => std::thread::sleep(std::time::Duration::from_millis(1)),
            code => return Err(code),
        }
    }
}

/// That a call is under way, at once or later.
fn under_way(answer: Answer, comm: usize) -> Answer {
    match answer {
        Ok(()) | Err(7) => settle(comm),
        Err(code) => Err(code),
    }
}

#[test]
fn communicators_need_not_block() {
    right("ranks::communicators_need_not_block", 4, |rank, device, id| {
        let (comm, answer) = cuda::join_later(id, 4, rank);
        assert_eq!(answer, Err(7));
        settle(comm)?;
        let mut part = 0;
        let color = if rank == 3 { -1 } else { (rank % 2) as i32 };
        match cuda::split_later(comm, color, -(rank as i32), &mut part) {
            Ok(()) | Err(7) => settle(comm)?,
            Err(code) => return Err(code),
        }
        assert_eq!(part == 0, rank == 3);
        if rank < 3 {
            settle(part)?;
            // Ranks 2 and 0, in the order of their keys.
            assert_eq!(cuda::size_and_rank(part)?, [[2, 1], [1, 0], [2, 0]][rank]);
            under_way(sum(device, part), part)?;
            let want = [14.0, 7.0, 14.0][rank];
            assert_eq!(cuda::read_on(device.y, N, device.a)?[7], want);
        }
        under_way(sum(device, comm), comm)?;
        assert_eq!(cuda::read_on(device.y, N, device.a)?[7], 28.0);
        if part != 0 {
            cuda::leave(part)?;
        }
        cuda::leave(comm)
    });
}

#[test]
fn calls_are_captured() {
    right("ranks::calls_are_captured", 2, |rank, device, id| {
        let (comm, event, back) = (cuda::join(id, 2, rank)?, cuda::event()?, cuda::event()?);
        sum(device, comm)?;
        cuda::wait_stream(device.a)?;
        cuda::begin(device.a, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        device.scale(device.a, 1)?;
        cuda::record(event, device.a)?;
        cuda::follow(device.b, event)?;
        cuda::all_reduce(device.y, device.y, N, Dtype::ncclFloat32, Op::ncclMax, comm, device.b)?;
        cuda::all_reduce(device.y, device.y, N, Dtype::ncclFloat32, Op::ncclSum, comm, device.b)?;
        cuda::record(back, device.b)?;
        cuda::follow(device.a, back)?;
        let graph = cuda::end(device.a)?;
        for _ in 0..3 {
            cuda::launch_graph(graph, device.a)?;
        }
        assert_eq!(cuda::read_on(device.y, N, device.a)?[7], 30.0);
        cuda::destroy_graph(graph)?;
        cuda::leave(comm)
    });
}

#[test]
fn a_communicator_outlives_its_graphs() {
    wrong("ranks::a_communicator_outlives_its_graphs", "destroyed before graphs that hold calls of it", |rank, device, id| {
        let comm = cuda::join(id, 2, rank)?;
        sum(device, comm)?;
        cuda::wait_stream(device.a)?;
        cuda::begin(device.a, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        cuda::all_reduce(device.y, device.y, N, Dtype::ncclFloat32, Op::ncclSum, comm, device.a)?;
        cuda::end(device.a)?;
        cuda::leave(comm)
    });
}

#[test]
fn messages_without_a_group_do_not_move() {
    wrong("ranks::messages_without_a_group_do_not_move", "nothing moves: device 0 stream 0 waits for rank 0 of 2 in send", {
        |rank, device, id| {
            let comm = cuda::join(id, 2, rank)?;
            cuda::send(device.x, N, 1 - rank, comm, device.a)?;
            cuda::recv(device.y, N, 1 - rank, comm, device.a)?;
            cuda::wait_stream(device.a)
        }
    });
}

#[test]
fn different_calls_are_reported() {
    wrong("ranks::different_calls_are_reported", "ranks call different things", |rank, device, id| {
        let comm = cuda::join(id, 2, rank)?;
        cuda::all_reduce(device.x, device.y, N - rank, Dtype::ncclFloat32, Op::ncclSum, comm, device.a)?;
        cuda::wait_stream(device.a)
    });
}

#[test]
fn different_types_are_reported() {
    wrong("ranks::different_types_are_reported", "rank 0 all_reduce of 150", |rank, device, id| {
        let comm = cuda::join(id, 2, rank)?;
        let dtype = [Dtype::ncclBfloat16, Dtype::ncclFloat16][rank];
        cuda::all_reduce(device.x, device.y, N / 2, dtype, Op::ncclSum, comm, device.a)?;
        cuda::wait_stream(device.a)
    });
}

#[test]
fn a_rank_that_does_not_call_is_named() {
    wrong("ranks::a_rank_that_does_not_call_is_named", "ranks [0] have come", |rank, device, id| {
        let comm = cuda::join(id, 2, rank)?;
        if rank == 0 {
            sum(device, comm)?;
        }
        cuda::wait_stream(device.a)
    });
}

#[test]
fn a_rank_that_never_comes_is_missed() {
    wrong("ranks::a_rank_that_never_comes_is_missed", "waits for a communicator, and ranks [0] are there", |rank, _, id| {
        if rank == 1 { Ok(()) } else { cuda::join(id, 2, rank).map(|_| ()) }
    });
}

#[test]
fn a_call_races_with_a_kernel() {
    wrong("ranks::a_call_races_with_a_kernel", "race: ", |rank, device, id| {
        let comm = cuda::join(id, 2, rank)?;
        sum(device, comm)?;
        device.add(device.b)?;
        cuda::wait_all()
    });
}

#[test]
fn a_call_out_of_bounds_is_reported() {
    wrong("ranks::a_call_out_of_bounds_is_reported", "out of bounds", |rank, device, id| {
        let comm = cuda::join(id, 2, rank)?;
        cuda::all_gather(device.x, device.y, N, comm, device.a)?;
        cuda::wait_all()
    });
}

#[test]
fn overlapping_operands_are_reported() {
    wrong("ranks::overlapping_operands_are_reported", "otherwise than in place", |rank, device, id| {
        let (comm, wide) = (cuda::join(id, 2, rank)?, cuda::allocate(N * 8)?);
        cuda::clear(wide, N * 8, device.a)?;
        cuda::all_gather(wide + 4, wide, N, comm, device.a)?;
        cuda::wait_all()
    });
}

#[test]
fn a_call_too_early_is_reported() {
    wrong("ranks::a_call_too_early_is_reported", "is called", |rank, device, id| {
        // The other rank is not there yet.
        if rank == 1 {
            return Ok(());
        }
        let (comm, _) = cuda::join_later(id, 2, rank);
        sum(device, comm)
    });
}

#[test]
fn faults_of_communicators_are_seen_by_asking() {
    whole("ranks::faults_of_communicators_are_seen_by_asking", || {
        cuda::set("FAULT", "nccl:3:6");
        for seed in 0..SEEDS {
            cuda::reset(seed);
            let answers = ranks(2, |rank, device, id| {
                let comm = cuda::join(id, 2, rank)?;
                let event = cuda::event()?;
                sum(device, comm)?;
                sum(device, comm)?;
                cuda::record(event, device.a)?;
                let began = std::time::Instant::now();
                loop {
                    match (cuda::ask_event(event), cuda::state(comm)?) {
                        (_, 6) => {
                            // Calls that wait end with it.
                            cuda::abort(comm)?;
                            cuda::wait_stream(device.a)?;
                            return Err(6);
                        }
                        (Ok(()), 0) => return Ok(()),
                        _ if began.elapsed().as_millis() > 100 => {
                            cuda::abort(comm)?;
                            return Err(99);
                        }
                        _ => std::thread::sleep(std::time::Duration::from_millis(1)),
                    }
                }
            });
            assert!(answers.contains(&Err(6)) && answers.contains(&Err(99)), "seed {seed}: {answers:?}");
        }
        cuda::set("FAULT", "nccl_init:2:2");
        for seed in 0..SEEDS {
            cuda::reset(seed);
            cuda::set("PATIENCE", "100");
            assert_eq!(ranks(2, |rank, _, id| cuda::join(id, 2, rank).map(|_| ())), [Err(2); 2]);
        }
    });
}

#[test]
fn sums_have_their_types() {
    right("ranks::sums_have_their_types", 2, |rank, device, id| {
        let comm = cuda::join(id, 2, rank)?;
        // Words whose halves are 1.0 and 2.0 of bf16, or of f16.
        for (dtype, [one, two], [three, four]) in
            [(Dtype::ncclBfloat16, [0x3f80, 0x4000], [0x4000, 0x4080]), (Dtype::ncclFloat16, [0x3c00, 0x4000], [0x4000, 0x4400])]
        {
            cuda::write_on(device.x, &[f32::from_bits(two << 16 | one); N], device.a)?;
            cuda::all_reduce(device.x, device.y, 2 * N, dtype, Op::ncclSum, comm, device.a)?;
            assert_eq!(cuda::read_on(device.y, N, device.a)?[5].to_bits(), four << 16 | three);
        }
        cuda::write_on(device.x, &[f32::from_bits(0x0001_0203 + rank as u32); N], device.a)?;
        cuda::all_reduce(device.x, device.y, 4 * N, Dtype::ncclUint8, Op::ncclMax, comm, device.a)?;
        assert_eq!(cuda::read_on(device.y, N, device.a)?[5].to_bits(), 0x0001_0204);
        let words: Vec<f32> = [5u32, 0].repeat(N / 2).into_iter().map(f32::from_bits).collect();
        cuda::write_on(device.x, &words, device.a)?;
        cuda::all_reduce(device.x, device.y, N / 2, Dtype::ncclInt64, Op::ncclSum, comm, device.a)?;
        assert_eq!(cuda::read_on(device.y, N, device.a)?[4].to_bits(), 10);
        cuda::leave(comm)
    });
}
