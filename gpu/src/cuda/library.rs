//! Which of NVIDIA's libraries are there, and whether they have what is called.
#![allow(unsafe_code, reason = "libraries run code of their own when they are opened")]

use super::{driver, nccl};
use shardc_cublaslt::Library as CublasLt;
use shardc_ir::reason::Reason;
use shardc_nvrtc::Nvrtc;
use std::fmt;

/// The oldest driver that is taken, 12.0: streams are captured as they are since then.
const OLDEST_DRIVER: i32 = 12_000;

/// The oldest NCCL that is taken, 2.22, whose configuration is used.
const OLDEST_NCCL: i32 = 22_200;

/// What a run needs beside the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needed {
    /// Products of matrices.
    pub cublaslt: bool,
    /// Calls of communicators.
    pub nccl: bool,
}

/// The libraries of a run, all of them there.
#[derive(Debug, Clone)]
pub struct Libraries {
    driver: (i32, u32),
    cublaslt: Option<CublasLt>,
}

/// One library: what was found.
#[derive(Debug)]
pub struct Found {
    /// Its name, `libcuda`.
    pub library: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    /// Its version, or why it cannot be used.
    pub version: Result<String, String>,
}

/// What is missing, all of it.
#[derive(Debug)]
pub struct Missing(pub Vec<String>);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\n  = help: `shardc doctor` shows what is found of each library, and where it was looked for",
            self.0.join("\n")
        )
    }
}

impl Libraries {
    /// Those that `needed` says.
    ///
    /// # Errors
    /// Everything that is missing or too old.
    pub fn find(needed: Needed) -> Result<Libraries, Missing> {
        let mut missing = vec![];
        let mut keep = |error: String| missing.push(error);
        let driver = found_driver().map_err(&mut keep).ok();
        let cublaslt = needed.cublaslt.then(|| CublasLt::open().map_err(&mut keep).ok()).flatten();
        if needed.nccl {
            order_calls();
            let _ = found_nccl().map_err(&mut keep);
        }
        if let Some((driver, nvrtc)) = driver.zip(Nvrtc::find().ok()) {
            missing.extend(too_new(parts(driver.0), nvrtc.version()));
        }
        match driver.filter(|_| missing.is_empty()) {
            Some(driver) => Ok(Libraries { driver, cublaslt }),
            None => Err(Missing(missing)),
        }
    }

    /// How many GPUs the driver has.
    pub fn gpus(&self) -> u32 {
        self.driver.1
    }

    /// The driver's version: major, minor.
    pub fn driver(&self) -> (i32, i32) {
        parts(self.driver.0)
    }

    /// cuBLASLt, where it was asked for.
    pub fn cublaslt(&self) -> Option<&CublasLt> {
        self.cublaslt.as_ref()
    }

    /// What is found of each library.
    pub fn all() -> Vec<Found> {
        let dotted = |(major, minor): (i32, i32)| format!("{major}.{minor}");
        let driver = found_driver().map(|(version, gpus)| match gpus {
            1 => format!("{}, 1 GPU", dotted(parts(version))),
            _ => format!("{}, {gpus} GPUs", dotted(parts(version))),
        });
        let nvrtc = Nvrtc::find().map(|nvrtc| dotted(nvrtc.version()));
        let cublaslt = CublasLt::open().map(|library| library.version().map(|n| n.to_string()).join("."));
        let nccl = found_nccl().map(|v| format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100));
        vec![
            Found { library: "libcuda", purpose: "the driver", version: driver },
            Found { library: "libnvrtc", purpose: "assembles kernels", version: nvrtc },
            Found { library: "libcublasLt", purpose: "multiplies matrices", version: cublaslt },
            Found { library: "libnccl", purpose: "connects ranks", version: nccl },
        ]
    }
}

/// Why a driver does not load what NVRTC makes: that of a later major version it does not know.
fn too_new(driver: (i32, i32), nvrtc: (i32, i32)) -> Option<String> {
    let ((major, minor), (made, by)) = (driver, nvrtc);
    let help = format!("update the driver, or `pip install nvidia-cuda-nvrtc-cu{major}` and link that");
    (made > major)
        .then(|| format!("the CUDA driver is of version {major}.{minor}, and does not load kernels of NVRTC {made}.{by}; {help}"))
}

fn parts(version: i32) -> (i32, i32) {
    (version / 1000, version % 1000 / 10)
}

fn found_driver() -> Result<(i32, u32), String> {
    // SAFETY: the driver's own code is trusted.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(
            "the CUDA driver is not there (looked for libcuda.so and libcuda.so.1); NVIDIA's driver for the GPU brings it".into(),
        );
    }
    for name in driver::FUNCTIONS {
        // SAFETY: the library was just opened; the symbol is not called.
        if unsafe { cudarc::driver::sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()).is_err() } {
            return Err(format!("the CUDA driver lacks `{name}`, so it is too old; version 12.0 is the oldest that will do"));
        }
    }
    let (version, gpus) = driver::start().map_err(|why: Reason| format!("the CUDA driver does not start: {why}"))?;
    let (major, minor) = parts(version);
    if version < OLDEST_DRIVER {
        return Err(format!("the CUDA driver is of version {major}.{minor}; 12.0 is the oldest that will do"));
    }
    if gpus == 0 {
        return Err("the CUDA driver finds no GPU (`CUDA_VISIBLE_DEVICES` may hide it)".into());
    }
    Ok((version, gpus))
}

/// Tells NCCL to run the calls of several communicators in the order in which they were made, which
/// is one for all ranks, unless the user says otherwise.
fn order_calls() {
    const ORDER: &str = "NCCL_LAUNCH_ORDER_IMPLICIT";
    if std::env::var_os(ORDER).is_none() {
        // SAFETY: NCCL is not open yet, ranks have no threads yet, and the threads that there are,
        // of signals and of connections, ask for no variable.
        unsafe { std::env::set_var(ORDER, "1") };
    }
}

fn found_nccl() -> Result<i32, String> {
    let how = "NCCL comes with `pip install nvidia-nccl-cu13`; a link `libnccl.so` to its `libnccl.so.2` must be in `gpu-libs` \
               beside the program, which `shardc doctor --link` makes, or in a folder of `LD_LIBRARY_PATH`";
    // SAFETY: NCCL's own code is trusted.
    if !unsafe { cudarc::nccl::sys::is_culib_present() } {
        return Err(format!("NCCL is not there (looked for libnccl.so); {how}"));
    }
    for name in nccl::FUNCTIONS {
        // SAFETY: the library was just opened; the symbol is not called.
        if unsafe { cudarc::nccl::sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()).is_err() } {
            return Err(format!("the NCCL that was found lacks `{name}`, so it is too old or not NCCL; {how}"));
        }
    }
    let version = nccl::version().map_err(|why| format!("NCCL has no version: {why}"))?;
    if version < OLDEST_NCCL {
        let (major, minor) = (version / 10_000, version / 100 % 100);
        return Err(format!("NCCL is of version {major}.{minor}; 2.22 is the oldest that will do; {how}"));
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::too_new;

    #[test]
    fn a_driver_loads_what_its_major_version_made() {
        assert_eq!(too_new((13, 0), (13, 5)), None);
        assert_eq!(too_new((13, 0), (12, 9)), None);
        assert!(too_new((12, 8), (13, 0)).is_some_and(|why| why.contains("12.8") && why.contains("cu12")));
    }
}
