//! What a wrong program does is reported, in every order, and gives the error of a real device.

use super::cuda::{self, Answer, Mode, Pinned};
use super::right::{BLOCKS, Device, N};
use super::{SEEDS, whole};

/// A wrong program, the codes that its end may have, and what a report says.
type Case = (&'static str, fn() -> Answer, &'static [u32], &'static str);

const LOCAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// Everything that was told happens.
fn all() -> Answer {
    cuda::wait_all()
}

fn race() -> Answer {
    let device = Device::new(0)?;
    device.scale(device.a, 1)?;
    device.add(device.b)?;
    all()
}

fn race_of_reads_and_writes() -> Answer {
    let device = Device::new(0)?;
    device.add(device.a)?;
    cuda::clear(device.x, N * 4, device.b)?;
    all()
}

fn event_too_early() -> Answer {
    let (device, event) = (Device::new(0)?, cuda::event()?);
    cuda::record(event, device.a)?;
    device.scale(device.a, 1)?;
    cuda::follow(device.b, event)?;
    device.add(device.b)?;
    all()
}

fn legacy_stream_beside_others() -> Answer {
    let device = Device::new(0)?;
    cuda::write(device.x, &[1.0; N])?;
    device.scale(device.a, 1)?;
    all()
}

fn pinned_race() -> Answer {
    let (device, pinned) = (Device::new(0)?, Pinned::new(N)?);
    cuda::copy_out(pinned, device.x, device.a)?;
    cuda::copy_in(device.y, pinned, device.b)?;
    all()
}

fn short_operand() -> Answer {
    let device = Device::new(0)?;
    let short = cuda::allocate(N * 4 - 4)?;
    cuda::launch(device.add, BLOCKS, &[device.x, short], device.a)?;
    all()
}

fn copy_out_of_bounds() -> Answer {
    let device = Device::new(0)?;
    cuda::copy(device.y, device.x + 4, N * 4, device.a)?;
    all()
}

fn memset_out_of_bounds() -> Answer {
    let device = Device::new(0)?;
    cuda::clear(device.y, N * 4 + 1, device.a)?;
    all()
}

fn address_of_the_host_in_a_kernel() -> Answer {
    let device = Device::new(0)?;
    let host = [0f32; N];
    cuda::launch(device.add, BLOCKS, &[device.x, host.as_ptr() as u64], device.a)?;
    all()
}

fn address_of_the_device_as_the_hosts() -> Answer {
    let device = Device::new(0)?;
    cuda::copy_in_from(device.y, device.x, N * 4, device.a)
}

fn memory_of_another_device() -> Answer {
    let other = Device::new(1)?;
    let device = Device::new(0)?;
    cuda::launch(device.add, BLOCKS, &[other.x, device.y], device.a)?;
    all()
}

fn freed_while_it_is_used() -> Answer {
    let device = Device::new(0)?;
    device.scale(device.a, 1)?;
    cuda::free(device.y)?;
    all()
}

fn freed_before_use() -> Answer {
    let device = Device::new(0)?;
    cuda::free(device.x)?;
    device.scale(device.a, 1)?;
    all()
}

fn freed_twice() -> Answer {
    let device = Device::new(0)?;
    cuda::free(device.x)?;
    cuda::free(device.x)
}

fn pinned_freed_while_it_is_used() -> Answer {
    let (device, pinned) = (Device::new(0)?, Pinned::new(N)?);
    cuda::copy_out(pinned, device.x, device.a)?;
    pinned.free()?;
    all()
}

fn freed_while_a_graph_uses_it() -> Answer {
    let device = Device::new(0)?;
    cuda::begin(device.a, LOCAL)?;
    device.scale(device.a, 1)?;
    let graph = cuda::end(device.a)?;
    cuda::launch_graph(graph, device.a)?;
    cuda::free(device.y)?;
    all()
}

fn overlapping_operands() -> Answer {
    let device = Device::new(0)?;
    cuda::launch(device.add, BLOCKS, &[device.x, device.x], device.a)?;
    all()
}

fn unloaded_kernel() -> Answer {
    let device = Device::new(0)?;
    let module = cuda::module(super::right::cubin())?;
    let scale = cuda::function(module, "scale_0")?;
    cuda::launch(scale, BLOCKS, &[device.x, device.factor, device.y, 0], device.a)?;
    cuda::unload(module)?;
    all()
}

fn grid_of_nothing() -> Answer {
    let device = Device::new(0)?;
    cuda::launch(device.add, 0, &[device.x, device.y], device.a)
}

fn too_much_shared_memory() -> Answer {
    let device = Device::new(0)?;
    cuda::launch_of(device.add, [BLOCKS, 1, 1], 128, 48 * 1024 + 1, &[device.x, device.y], device.a)
}

fn too_many_threads() -> Answer {
    let device = Device::new(0)?;
    cuda::launch_of(device.add, [BLOCKS, 1, 1], 256, 0, &[device.x, device.y], device.a)
}

fn stream_of_another_device() -> Answer {
    let other = Device::new(1)?;
    let device = Device::new(0)?;
    device.add(other.a)
}

fn foreign_module() -> Answer {
    Device::new(0)?;
    cuda::module(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 51, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]).map(|_| ())
}

/// Begins a capture, breaks it, and gives the code of what breaks it.
fn captured(mode: Mode, breaks: impl Fn(&Device) -> Answer) -> Answer {
    let device = Device::new(0)?;
    cuda::begin(device.a, mode)?;
    device.scale(device.a, 1)?;
    let answer = breaks(&device);
    let end = cuda::end(device.a).map(|_| ());
    assert!(answer.is_err() && end.is_err(), "{answer:?}, then {end:?}");
    answer
}

fn allocation_in_a_capture() -> Answer {
    captured(LOCAL, |_| cuda::allocate(16).map(|_| ()))
}

fn freeing_in_a_capture() -> Answer {
    captured(LOCAL, |device| cuda::free(device.x))
}

fn pinned_allocation_in_a_capture() -> Answer {
    captured(LOCAL, |_| Pinned::new(16).map(|_| ()))
}

fn waiting_in_a_capture() -> Answer {
    captured(LOCAL, |device| cuda::wait_stream(device.a))
}

fn waiting_for_another_stream_in_a_capture() -> Answer {
    captured(LOCAL, |device| cuda::wait_stream(device.b))
}

fn waiting_for_all_in_a_capture() -> Answer {
    captured(LOCAL, |_| cuda::wait_all())
}

fn asking_in_a_capture() -> Answer {
    captured(LOCAL, |device| cuda::ask_stream(device.a))
}

fn asking_for_an_event_of_the_capture() -> Answer {
    let event = cuda::event();
    captured(Mode::CU_STREAM_CAPTURE_MODE_RELAXED, |device| {
        let event = event.or_else(|_| cuda::event())?;
        cuda::record(event, device.a)?;
        cuda::ask_event(event)
    })
}

fn an_event_of_before_in_a_capture() -> Answer {
    captured(LOCAL, |device| {
        let event = cuda::event()?;
        cuda::record(event, device.b)?;
        cuda::follow(device.a, event)
    })
}

fn pageable_copy_in_a_capture() -> Answer {
    captured(LOCAL, |device| cuda::write_on(device.x, &[0.0; N], device.a))
}

fn waiting_copy_in_a_capture() -> Answer {
    captured(LOCAL, |device| cuda::read(device.x, N).map(|_| ()))
}

fn loading_in_a_capture() -> Answer {
    captured(LOCAL, |_| cuda::module(super::right::cubin()).map(|_| ()))
}

fn legacy_stream_in_a_capture() -> Answer {
    let device = Device::new(0)?;
    let blocking = cuda::blocking_stream()?;
    cuda::begin(blocking, Mode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
    let answer = cuda::clear(device.x, 4, 0);
    assert_eq!(cuda::end(blocking), Err(901));
    answer
}

fn unjoined_capture() -> Answer {
    let (device, event) = (Device::new(0)?, cuda::event()?);
    cuda::begin(device.a, LOCAL)?;
    cuda::record(event, device.a)?;
    cuda::follow(device.b, event)?;
    device.scale(device.b, 1)?;
    cuda::end(device.a).map(|_| ())
}

fn joined_too_early() -> Answer {
    let (device, event, back) = (Device::new(0)?, cuda::event()?, cuda::event()?);
    cuda::begin(device.a, LOCAL)?;
    cuda::record(event, device.a)?;
    cuda::follow(device.b, event)?;
    cuda::record(back, device.b)?;
    device.scale(device.b, 1)?;
    cuda::follow(device.a, back)?;
    cuda::end(device.a).map(|_| ())
}

fn other_thread_asks_in_a_global_capture() -> Answer {
    captured(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, |device| {
        let stream = device.b;
        std::thread::spawn(move || cuda::enter(0).and_then(|()| cuda::ask_stream(stream))).join().unwrap()
    })
}

fn race_within_a_graph() -> Answer {
    let (device, event, back) = (Device::new(0)?, cuda::event()?, cuda::event()?);
    cuda::begin(device.a, LOCAL)?;
    cuda::record(event, device.a)?;
    cuda::follow(device.b, event)?;
    device.scale(device.a, 1)?;
    device.add(device.b)?;
    cuda::record(back, device.b)?;
    cuda::follow(device.a, back)?;
    let graph = cuda::end(device.a)?;
    cuda::launch_graph(graph, device.a)?;
    all()
}

fn race_with_a_graph() -> Answer {
    let device = Device::new(0)?;
    cuda::begin(device.a, LOCAL)?;
    device.scale(device.a, 1)?;
    let graph = cuda::end(device.a)?;
    cuda::launch_graph(graph, device.a)?;
    device.add(device.b)?;
    all()
}

fn another_thread_does_not_know_what_was_asked() -> Answer {
    let (device, event) = (Device::new(0)?, cuda::event()?);
    device.scale(device.a, 1)?;
    cuda::record(event, device.a)?;
    std::thread::spawn(move || while cuda::enter(0).and_then(|()| cuda::ask_event(event)) == Err(600) {}).join().unwrap();
    device.add(device.b)?;
    all()
}

const CASES: &[Case] = &[
    ("race", race, &[719], "race: it "),
    ("race_of_reads_and_writes", race_of_reads_and_writes, &[719], "race: "),
    ("event_too_early", event_too_early, &[719], "race: "),
    ("legacy_stream_beside_others", legacy_stream_beside_others, &[719], "race: "),
    ("pinned_race", pinned_race, &[719], "pinned memory of the host, not ordered"),
    ("short_operand", short_operand, &[700], "operand y: bytes 0 to 1200 of an allocation of 1196"),
    ("copy_out_of_bounds", copy_out_of_bounds, &[700], "out of bounds"),
    ("memset_out_of_bounds", memset_out_of_bounds, &[700], "out of bounds"),
    ("address_of_the_host_in_a_kernel", address_of_the_host_in_a_kernel, &[700], "no memory of a device"),
    ("address_of_the_device_as_the_hosts", address_of_the_device_as_the_hosts, &[1], "from an address of the device"),
    ("memory_of_another_device", memory_of_another_device, &[700], "memory of device 1"),
    ("freed_while_it_is_used", freed_while_it_is_used, &[700], "that was freed"),
    ("freed_before_use", freed_before_use, &[700], "that was freed"),
    ("freed_twice", freed_twice, &[1], "freed twice"),
    ("pinned_freed_while_it_is_used", pinned_freed_while_it_is_used, &[700], "pinned memory of the host that was freed"),
    ("freed_while_a_graph_uses_it", freed_while_a_graph_uses_it, &[700], "that was freed"),
    ("overlapping_operands", overlapping_operands, &[719], "operands x and y share memory"),
    ("unloaded_kernel", unloaded_kernel, &[719], "unloaded"),
    ("grid_of_nothing", grid_of_nothing, &[1], "a grid of"),
    ("too_much_shared_memory", too_much_shared_memory, &[1], "bytes of shared memory"),
    ("too_many_threads", too_many_threads, &[1], "blocks of 256 threads"),
    ("stream_of_another_device", stream_of_another_device, &[400], "a stream of device 1"),
    ("foreign_module", foreign_module, &[200], "not made"),
    ("allocation_in_a_capture", allocation_in_a_capture, &[900], "memory is allocated while a stream is captured"),
    ("freeing_in_a_capture", freeing_in_a_capture, &[900], "memory is freed while"),
    ("pinned_allocation_in_a_capture", pinned_allocation_in_a_capture, &[900], "memory of the host is allocated while"),
    ("waiting_in_a_capture", waiting_in_a_capture, &[900], "a captured stream is waited for"),
    ("waiting_for_another_stream_in_a_capture", waiting_for_another_stream_in_a_capture, &[900], "a stream is waited for while"),
    ("waiting_for_all_in_a_capture", waiting_for_all_in_a_capture, &[900], "all streams are waited for while"),
    ("asking_in_a_capture", asking_in_a_capture, &[900], "a captured stream is asked"),
    ("asking_for_an_event_of_the_capture", asking_for_an_event_of_the_capture, &[907], "an event of a capture is asked"),
    ("an_event_of_before_in_a_capture", an_event_of_before_in_a_capture, &[905], "recorded outside"),
    ("pageable_copy_in_a_capture", pageable_copy_in_a_capture, &[900], "pageable memory"),
    ("waiting_copy_in_a_capture", waiting_copy_in_a_capture, &[900], "a copy is waited for while"),
    ("loading_in_a_capture", loading_in_a_capture, &[900], "a module is loaded while"),
    ("legacy_stream_in_a_capture", legacy_stream_in_a_capture, &[906], "the legacy default stream"),
    ("unjoined_capture", unjoined_capture, &[904], "has not joined"),
    ("joined_too_early", joined_too_early, &[904], "has not joined"),
    ("other_thread_asks_in_a_global_capture", other_thread_asks_in_a_global_capture, &[900], "a stream is asked while"),
    ("race_within_a_graph", race_within_a_graph, &[719], "race: "),
    ("race_with_a_graph", race_with_a_graph, &[719], "race: "),
    ("another_thread_does_not_know_what_was_asked", another_thread_does_not_know_what_was_asked, &[719], "race: "),
];

#[test]
fn wrong_programs_are_reported() {
    whole("wrong::wrong_programs_are_reported", || {
        for (name, program, codes, report) in CASES {
            for seed in 0..SEEDS {
                cuda::reset(seed);
                let (answer, reports) = (program(), cuda::reports());
                assert!(answer.is_err_and(|code| codes.contains(&code)), "{name}, seed {seed}: {answer:?}\n{reports}");
                assert!(reports.contains(report), "{name}, seed {seed}: {reports}");
            }
        }
    });
}

#[test]
fn errors_stick() {
    whole("wrong::errors_stick", || {
        for seed in 0..SEEDS {
            cuda::reset(seed);
            let device = Device::new(0).unwrap();
            let other = Device::new(1).unwrap();
            cuda::enter(0).unwrap();
            cuda::clear(device.y, N * 4 + 1, device.a).unwrap();
            assert_eq!(cuda::wait_all(), Err(700));
            assert_eq!(device.add(device.a), Err(700));
            assert_eq!(cuda::wait_stream(device.b), Err(700));
            assert_eq!(cuda::allocate(4), Err(700));
            // Another device goes on.
            cuda::enter(1).unwrap();
            other.scale(other.a, 0).unwrap();
            assert_eq!(cuda::wait_all(), Ok(()));
        }
    });
}

#[test]
fn a_copy_that_is_not_waited_for_gives_other_bytes() {
    whole("wrong::a_copy_that_is_not_waited_for_gives_other_bytes", || {
        for seed in 0..SEEDS {
            cuda::reset(seed);
            let (device, input, output) = (Device::new(0).unwrap(), Pinned::new(N).unwrap(), Pinned::new(N).unwrap());
            input.fill(1.0);
            output.fill(5.0);
            cuda::copy_in(device.x, input, device.a).unwrap();
            // The copy has not begun yet.
            input.fill(3.0);
            device.scale(device.a, 0).unwrap();
            cuda::copy_out(output, device.y, device.a).unwrap();
            assert!(output.get(7).is_nan(), "read before it was copied: {}", output.get(7));
            cuda::wait_stream(device.a).unwrap();
            assert_eq!(output.get(7), 6.0);
        }
    });
}

#[test]
fn new_memory_holds_no_numbers() {
    whole("wrong::new_memory_holds_no_numbers", || {
        cuda::reset(1);
        let device = Device::new(0).unwrap();
        let new = cuda::allocate(N * 4).unwrap();
        assert!(cuda::read_on(new, N, device.a).unwrap().iter().all(|x| x.is_nan()));
    });
}
