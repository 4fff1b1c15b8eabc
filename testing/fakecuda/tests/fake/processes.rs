//! Ranks that are processes meet over a socket.

use super::cuda::{self, Answer, Dtype, Id, Op};
use super::right::{Device, N};
use super::{CHILD, library, own_folder};
use shardc_fakecuda::folder::Installation;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What a process of a rank is told: its number, the ranks, and a folder for the identity.
const RANK: &str = "FAKE_TEST_RANK";

fn spawn(test: &str, rank: usize, folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, test).env("LD_LIBRARY_PATH", folder);
    command.env(RANK, rank.to_string()).env("FAKE_CUDA_NCCL", "tcp").env("FAKE_CUDA_SEED", rank.to_string());
    command.env("FAKE_CUDA_FOLDER", PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The identity, which rank 0 writes into the folder.
fn shared_id(rank: usize) -> Id {
    let file = std::env::var("LD_LIBRARY_PATH").unwrap() + "/id";
    if rank == 0 {
        let id = cuda::id().unwrap();
        std::fs::write(format!("{file}.new"), id.internal.map(|byte| byte as u8)).unwrap();
        std::fs::rename(format!("{file}.new"), file).unwrap();
        return id;
    }
    loop {
        if let Ok(bytes) = std::fs::read(&file) {
            return Id { internal: std::array::from_fn(|i| bytes[i] as _) };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `count` processes of `rank`, and gives what each said and whether it succeeded.
fn processes(test: &str, count: usize, rank: impl Fn(usize)) -> Vec<(bool, String)> {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        rank(std::env::var(RANK).unwrap().parse().unwrap());
        return vec![];
    }
    let folder = Installation::whole().make(&library(), &own_folder(&test.replace("::", "-"))).unwrap();
    let all: Vec<Child> = (0..count).map(|rank| spawn(test, rank, &folder)).collect();
    all.into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
            (output.status.success(), said)
        })
        .collect()
}

fn sum(device: &Device, comm: usize) -> Answer {
    cuda::all_reduce(device.x, device.y, N, Dtype::ncclFloat32, Op::ncclSum, comm, device.a)
}

#[test]
fn processes_compute_together() {
    let all = processes("processes::processes_compute_together", 3, |rank| {
        let device = Device::new(0).unwrap();
        let comm = cuda::join(shared_id(rank), 3, rank).unwrap();
        for _ in 0..20 {
            sum(&device, comm).unwrap();
            assert_eq!(cuda::read_on(device.y, N, device.a).unwrap()[7], 21.0);
        }
        let part = cuda::split(comm, (rank % 2) as i32, -(rank as i32)).unwrap();
        assert_eq!(cuda::size_and_rank(part).unwrap(), [[2, 1], [1, 0], [2, 0]][rank]);
        sum(&device, part).unwrap();
        assert_eq!(cuda::read_on(device.y, N, device.a).unwrap()[7], [14.0, 7.0, 14.0][rank]);
        cuda::clear(device.x, N * 4, device.a).unwrap();
        cuda::group_begin().unwrap();
        cuda::send(device.y, N, (rank + 1) % 3, comm, device.a).unwrap();
        cuda::recv(device.x, N, (rank + 2) % 3, comm, device.a).unwrap();
        cuda::group_end().unwrap();
        assert_eq!(cuda::read_on(device.x, N, device.a).unwrap()[7], [14.0, 14.0, 7.0][rank]);
        // Large enough to fill sockets.
        let large = cuda::allocate(16 << 20).unwrap();
        cuda::clear(large, 16 << 20, device.a).unwrap();
        cuda::all_reduce(large, large, 4 << 20, Dtype::ncclFloat32, Op::ncclSum, comm, device.a).unwrap();
        cuda::wait_stream(device.a).unwrap();
        cuda::leave(part).unwrap();
        cuda::leave(comm).unwrap();
        assert_eq!(cuda::reports(), "");
    });
    assert!(all.iter().all(|(is_right, _)| *is_right), "{all:#?}");
}

#[test]
fn a_process_that_ends_is_missed() {
    let all = processes("processes::a_process_that_ends_is_missed", 3, |rank| {
        let device = Device::new(0).unwrap();
        let comm = cuda::join(shared_id(rank), 3, rank).unwrap();
        sum(&device, comm).unwrap();
        cuda::wait_stream(device.a).unwrap();
        if rank == 1 {
            std::process::exit(0);
        }
        sum(&device, comm).unwrap();
        let began = Instant::now();
        while cuda::state(comm) != Ok(6) {
            assert!(began.elapsed() < Duration::from_secs(20), "rank 1 is not missed");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(cuda::reports().contains("rank 1 is gone"), "{}", cuda::reports());
        cuda::abort(comm).unwrap();
        cuda::wait_stream(device.a).unwrap();
    });
    assert!(all.iter().all(|(is_right, _)| *is_right), "{all:#?}");
}

#[test]
fn the_first_process_ends() {
    let all = processes("processes::the_first_process_ends", 2, |rank| {
        let device = Device::new(0).unwrap();
        let (comm, _) = cuda::join_later(shared_id(rank), 2, rank);
        while cuda::state(comm) == Ok(7) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if rank == 0 {
            std::process::exit(0);
        }
        let _ = sum(&device, comm);
        let began = Instant::now();
        while cuda::state(comm) != Ok(6) {
            assert!(began.elapsed() < Duration::from_secs(20), "rank 0 is not missed");
            std::thread::sleep(Duration::from_millis(2));
        }
        cuda::abort(comm).unwrap();
    });
    assert!(all.iter().all(|(is_right, _)| *is_right), "{all:#?}");
}

#[test]
fn nobody_answers() {
    let all = processes("processes::nobody_answers", 1, |_| {
        Device::new(0).unwrap();
        let mut id = cuda::id().unwrap();
        let name: Vec<_> = "tcp 127.0.0.1:1 1".bytes().map(|byte| byte as _).collect();
        id.internal = [0; 128];
        id.internal[..name.len()].copy_from_slice(&name);
        assert_eq!(cuda::join(id, 2, 0), Err(2));
        assert!(cuda::reports().contains("no connection to the ranks at 127.0.0.1:1"), "{}", cuda::reports());
    });
    assert!(all.iter().all(|(is_right, _)| *is_right), "{all:#?}");
}
