//! What a right program does gives right results and no report, in every order.

use super::cuda::{self, Answer, Mode, Pinned};
use super::{RIGHT_SEEDS, whole};
use shardc_codegen::with_prelude;
use shardc_nvrtc::Nvrtc;
use std::sync::OnceLock;

/// Floats of the memory that kernels work on.
pub const N: usize = 300;

/// Runs a program in world after world, each of which must end without a report.
fn right(test: &str, program: impl Fn() -> Answer) {
    whole(test, || {
        for seed in 0..RIGHT_SEEDS {
            cuda::reset(seed);
            assert_eq!((program(), cuda::reports()), (Ok(()), String::new()), "seed {seed}");
        }
    });
}

/// Kernels over `N` floats: `y = a x + n0`, and `y += x`.
fn text() -> String {
    let bytes = N * 4;
    with_prelude(&format!(
        "//@ x read f32 {bytes} bytes\n//@ a read f32 4 bytes\n//@ y written f32 {bytes} bytes\n\
         KERNEL(128) scale_0(const float* __restrict__ x, const float* __restrict__ a, float* __restrict__ y, i64 n0) {{\n    \
         u32 i = blockIdx.x * 128 + threadIdx.x;\n    if (i < {N}) y[i] = a[0] * x[i] + (float)n0;\n}}\n\
         //@ x read f32 {bytes} bytes\n//@ y updated f32 {bytes} bytes\n\
         KERNEL(128) scale_1(const float* __restrict__ x, float* __restrict__ y) {{\n    \
         u32 i = blockIdx.x * 128 + threadIdx.x;\n    if (i < {N}) y[i] += x[i];\n}}\n"
    ))
}

/// The machine code.
pub fn cubin() -> &'static [u8] {
    static CUBIN: OnceLock<Vec<u8>> = OnceLock::new();
    CUBIN.get_or_init(|| {
        let nvrtc = Nvrtc::find().unwrap();
        assert_eq!(nvrtc.version(), (13, 99));
        let assembled = nvrtc.assemble("scale", &text(), 90).unwrap();
        assert_eq!(assembled.kernels.len(), 2);
        assert!(nvrtc.ptx("scale", &text(), 90).unwrap().ends_with(&text()));
        assert!(assembled.kernels.iter().all(|kernel| kernel.registers > 0));
        assembled.cubin
    })
}

/// A device with two streams and the kernels.
pub struct Device {
    pub a: usize,
    pub b: usize,
    pub scale: usize,
    pub add: usize,
    pub factor: u64,
    pub x: u64,
    pub y: u64,
}

pub const BLOCKS: u32 = (N as u32).div_ceil(128);

impl Device {
    /// With `x[i] = i` and the factor 2.
    pub fn new(number: i32) -> Answer<Device> {
        cuda::enter(number)?;
        let (a, b) = (cuda::stream()?, cuda::stream()?);
        let module = cuda::module(cubin())?;
        let (scale, add) = (cuda::function(module, "scale_0")?, cuda::function(module, "scale_1")?);
        let (factor, x, y) = (cuda::allocate(4)?, cuda::allocate(N * 4)?, cuda::allocate(N * 4)?);
        cuda::write_on(factor, &[2.0], a)?;
        cuda::write_on(x, &values(), a)?;
        cuda::wait_stream(a)?;
        Ok(Device { a, b, scale, add, factor, x, y })
    }

    /// `y = 2 x + more`
    pub fn scale(&self, stream: usize, more: i64) -> Answer {
        cuda::launch(self.scale, BLOCKS, &[self.x, self.factor, self.y, more as u64], stream)
    }

    /// `y += x`
    pub fn add(&self, stream: usize) -> Answer {
        cuda::launch(self.add, BLOCKS, &[self.x, self.y], stream)
    }
}

pub fn values() -> Vec<f32> {
    (0..N).map(|i| i as f32).collect()
}

/// `2 i + more`, and `i` so often.
fn wanted(more: f32, adds: f32) -> Vec<f32> {
    values().iter().map(|i| 2.0 * i + more + adds * i).collect()
}

#[test]
fn kernels_run() {
    right("right::kernels_run", || {
        let device = Device::new(0)?;
        device.scale(device.a, 5)?;
        device.add(device.a)?;
        assert_eq!(cuda::read_on(device.y, N, device.a)?, wanted(5.0, 1.0));
        Ok(())
    });
}

#[test]
fn streams_follow_events() {
    right("right::streams_follow_events", || {
        let device = Device::new(0)?;
        let (event, back) = (cuda::event()?, cuda::event()?);
        for turn in 0..4 {
            device.scale(device.a, turn)?;
            cuda::record(event, device.a)?;
            cuda::follow(device.b, event)?;
            device.add(device.b)?;
            cuda::record(back, device.b)?;
            cuda::follow(device.a, back)?;
        }
        assert_eq!(cuda::read_on(device.y, N, device.a)?, wanted(3.0, 1.0));
        // What is destroyed ends behind its work.
        device.scale(device.b, 0)?;
        cuda::record(event, device.b)?;
        cuda::destroy_stream(device.b)?;
        cuda::wait_event(event)?;
        cuda::destroy_event(event)?;
        assert_eq!([cuda::wait_event(event), device.add(device.b)], [Err(400); 2]);
        cuda::release(0)
    });
}

#[test]
fn pinned_copies_are_waited_for() {
    right("right::pinned_copies_are_waited_for", || {
        let device = Device::new(0)?;
        let (input, output, event) = (Pinned::new(N)?, Pinned::new(N)?, cuda::event()?);
        for turn in 1..5 {
            input.fill(turn as f32);
            cuda::copy_in(device.x, input, device.a)?;
            device.scale(device.a, 1)?;
            cuda::copy_out(output, device.y, device.a)?;
            cuda::record(event, device.a)?;
            while let Err(600) = cuda::ask_event(event) {}
            assert!((0..N).all(|i| output.get(i) == 2.0 * turn as f32 + 1.0));
        }
        input.free()?;
        output.free()
    });
}

#[test]
fn graphs_are_launched_again() {
    right("right::graphs_are_launched_again", || {
        let device = Device::new(0)?;
        let (event, back) = (cuda::event()?, cuda::event()?);
        cuda::begin(device.a, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        device.scale(device.a, 7)?;
        cuda::record(event, device.a)?;
        cuda::follow(device.b, event)?;
        device.add(device.b)?;
        cuda::record(back, device.b)?;
        cuda::follow(device.a, back)?;
        device.add(device.a)?;
        let graph = cuda::end(device.a)?;
        for _ in 0..3 {
            cuda::launch_graph(graph, device.a)?;
        }
        device.add(device.a)?;
        assert_eq!(cuda::read_on(device.y, N, device.a)?, wanted(7.0, 3.0));
        cuda::destroy_graph(graph)
    });
}
