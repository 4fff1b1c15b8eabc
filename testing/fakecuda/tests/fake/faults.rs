//! Faults that a setting asks for.

use super::cuda::{self, Answer, Pinned};
use super::right::Device;
use super::{SEEDS, whole};
use shardc_fakecuda::folder::Installation;

/// A fault, the program that meets it, and the code that it ends with.
type Case = (&'static str, fn() -> Answer, u32);

fn run() -> Answer {
    let (device, pinned) = (Device::new(0)?, Pinned::new(4)?);
    cuda::begin(device.a, cuda::Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    device.scale(device.a, 1)?;
    let graph = cuda::end(device.a)?;
    for _ in 0..3 {
        cuda::launch_graph(graph, device.a)?;
    }
    cuda::clear(device.x, 4, device.a)?;
    cuda::copy_out(pinned, device.y, device.a)?;
    cuda::wait_stream(device.a)
}

const CASES: &[Case] = &[
    ("alloc:2:2", run, 2),
    ("host_alloc:1:2", run, 2),
    ("launch:2:214", run, 214),
    ("copy:3:716", run, 716),
    ("memset:1:719", run, 719),
    ("module:1:209", run, 209),
    ("graph:3:719", run, 719),
    ("cuStreamCreate:2:2", run, 2),
    ("cuInit:1:100", run, 100),
    ("cuEventCreate:9:2,cuGraphInstantiateWithFlags:1:2", run, 2),
];

#[test]
fn faults_come_where_they_are_asked_for() {
    whole("faults::faults_come_where_they_are_asked_for", || {
        for (fault, program, code) in CASES {
            for seed in 0..SEEDS {
                cuda::set("FAULT", fault);
                cuda::reset(seed);
                let (answer, reports) = (program(), cuda::reports());
                assert_eq!(answer, Err(*code), "{fault}, seed {seed}: {reports}");
                assert!(reports.contains(&format!("fault {code}")), "{fault}, seed {seed}: {reports}");
                cuda::set("FAULT", "");
                cuda::reset(seed);
                assert_eq!(program(), Ok(()), "without {fault}, seed {seed}: {}", cuda::reports());
            }
        }
    });
}

#[test]
fn memory_ends() {
    whole("faults::memory_ends", || {
        cuda::set("MEMORY", "1000000");
        cuda::reset(1);
        cuda::enter(0).unwrap();
        let first = cuda::allocate(600_000).unwrap();
        assert_eq!(cuda::allocate(600_000), Err(2));
        cuda::free(first).unwrap();
        assert!(cuda::allocate(600_000).is_ok());
    });
}

#[test]
fn devices_are_as_many_as_is_said() {
    whole("faults::devices_are_as_many_as_is_said", || {
        cuda::set("DEVICES", "3");
        cuda::reset(1);
        assert_eq!([cuda::enter(2), cuda::enter(3)], [Ok(()), Err(101)]);
        cuda::set("DEVICES", "0");
        assert_eq!(cuda::enter(0), Err(100));
    });
}

#[test]
fn a_library_may_be_absent() {
    super::with(&Installation::whole().without("libnccl.so"), "faults::a_library_may_be_absent", || {
        assert_eq!(cuda::present(), [true, true, false, true]);
    });
}

#[test]
fn a_function_may_be_absent() {
    super::with(&Installation::whole().lacking("cuStreamQuery"), "faults::a_function_may_be_absent", || {
        assert_eq!(cuda::present(), [true; 4]);
        assert!(!cuda::has("cuStreamQuery") && cuda::has("cuStreamSynchronize"));
        cuda::reset(1);
        assert_eq!(run(), Ok(()));
    });
}
