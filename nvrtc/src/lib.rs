//! NVRTC, NVIDIA's library that assembles texts of CUDA kernels; it needs neither a GPU nor a
//! driver. It is opened while the program runs, and its absence is an answer like others.

mod cubins;
mod library;
mod limits;
mod log;
mod threads;

pub use cubins::Cubins;

use library::{Library, Made};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, CString};

/// The options of every text, beside the architecture: products and sums are fused only where the
/// text says so, and the log says what each kernel uses.
const OPTIONS: [&str; 5] = ["-fmad=false", "-default-device", "-std=c++17", "-diag-suppress=177", VERBOSE];
const VERBOSE: &str = "--ptxas-options=-v";

/// The driver, where there is one, may keep what was compiled, and the log of what is kept may be
/// empty. Versions from this number on have the option.
const NO_CACHE: &str = "-no-cache";
const HAS_NO_CACHE: (i32, i32) = (12, 9);

/// Leaves out declarations that no text of ours uses, such as those of textures: they take a fifth
/// of the time of a small text. The versions that have the option before have this one, too.
const MINIMAL: &str = "-minimal";

/// What the library calls every text. A cubin's names of static functions hold a hash of it, so it
/// is one for all.
const PROGRAM: &CStr = c"kernels";

/// The first bytes of a cubin, which is an ELF file.
const ELF: &[u8] = b"\x7fELF";

/// The library, which may be called by several threads at a time.
#[derive(Debug, Clone)]
pub struct Nvrtc {
    library: Library,
    version: (i32, i32),
    architectures: Vec<u32>,
}

/// A text of kernels as a GPU of one architecture runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembled {
    /// The machine code, an ELF file.
    pub cubin: Vec<u8>,
    /// What its kernels use, by their names.
    pub kernels: Vec<Resources>,
}

/// What a kernel uses of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// The kernel's name.
    pub entry: String,
    /// The registers of a thread.
    pub registers: u32,
    /// The bytes of shared memory that the text declares with their number, for each block.
    pub shared: u32,
    /// The bytes of a thread's stack, with those of the functions that it calls where their sum is
    /// known.
    pub stack: u32,
    /// The bytes of registers that a thread stores for lack of room, with those of the functions
    /// that it calls.
    pub spill_stores: u32,
    /// The bytes of registers that it loads again.
    pub spill_loads: u32,
}

impl Resources {
    /// What each kernel uses, sorted by their names, from what NVRTC says as it assembles them.
    ///
    /// # Errors
    /// If a number is missing, or it says nothing of any kernel.
    pub fn of_log(log: &str) -> Result<Vec<Resources>, String> {
        log::resources(log)
    }
}

impl Nvrtc {
    /// The library, where it is found.
    ///
    /// # Errors
    /// If no library is found, or one that lacks a function; the text says how to get it.
    pub fn find() -> Result<Nvrtc, String> {
        let library = Library::open()?;
        let version = library.version()?;
        let architectures = library.architectures()?;
        Ok(Nvrtc { library, version, architectures })
    }

    /// The library's version: major, minor.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The architectures that it assembles for, 90 for `sm_90`.
    pub fn architectures(&self) -> Vec<u32> {
        self.architectures.clone()
    }

    /// The kernels of `text`, assembled for the architecture `arch` (90 for `sm_90`). Messages call
    /// the text `name` where it has no `#line` of its own; nothing else follows from the name.
    ///
    /// # Errors
    /// If the compiler refuses the text; the error is what it says.
    pub fn assemble(&self, name: &str, text: &str, arch: u32) -> Result<Assembled, String> {
        Ok(self.assemble_with_ptx(name, text, arch)?.0)
    }

    /// [`Nvrtc::assemble`] with the PTX on the way, which is that of [`Nvrtc::ptx`].
    ///
    /// # Errors
    /// As [`Nvrtc::assemble`].
    pub fn assemble_with_ptx(&self, name: &str, text: &str, arch: u32) -> Result<(Assembled, String), String> {
        let Made { cubin, ptx, log } = self.compile(name, text, &self.options(arch), arch)?;
        if !cubin.starts_with(ELF) {
            return Err(format!("kernel `{name}`: what NVRTC made is no cubin"));
        }
        let kernels = Resources::of_log(&log).map_err(|e| format!("kernel `{name}`: {e}"))?;
        Ok((Assembled { cubin, kernels }, words(name, ptx)?))
    }

    /// The kernels of `text` as PTX for the virtual architecture `arch` (90 for `compute_90`).
    ///
    /// # Errors
    /// As [`Nvrtc::assemble`].
    pub fn ptx(&self, name: &str, text: &str, arch: u32) -> Result<String, String> {
        let mut options = self.options(arch);
        options[0] = format!("-arch=compute_{arch}");
        options.retain(|option| option != VERBOSE);
        words(name, self.compile(name, text, &options, arch)?.ptx)
    }

    /// [`Nvrtc::assemble`] for each (name, text), in their order, by as many threads as the machine
    /// has cores, but at most eight.
    pub fn assemble_all(&self, texts: &[(&str, &str)], arch: u32) -> Vec<Result<Assembled, String>> {
        threads::map(texts, |&(name, text)| self.assemble(name, text, arch))
    }

    fn compile(&self, name: &str, text: &str, options: &[String], arch: u32) -> Result<Made, String> {
        if !self.architectures.contains(&arch) {
            let (major, minor) = self.version;
            let known: Vec<String> = self.architectures.iter().map(ToString::to_string).collect();
            return Err(format!("NVRTC {major}.{minor} does not know sm_{arch}; it knows {}", known.join(", ")));
        }
        let visible = |c: char| if c.is_alphanumeric() || " ._-+:/()".contains(c) { c } else { '_' };
        let text = format!("#line 1 \"{}\"\n{text}", name.chars().map(visible).collect::<String>());
        let text = CString::new(text).map_err(|_| format!("kernel `{name}`: the text has a zero byte"))?;
        let made = self.library.compile(PROGRAM, &text, options);
        made.map_err(|failed| format!("kernel `{name}`: {}", log::failure(&failed.code, &failed.log)))
    }

    /// The options that make a cubin; the first says for which architecture.
    fn options(&self, arch: u32) -> Vec<String> {
        let later: &[&str] = if self.version >= HAS_NO_CACHE { &[NO_CACHE, MINIMAL] } else { &[] };
        let first = format!("-arch=sm_{arch}");
        std::iter::once(first).chain(OPTIONS.iter().chain(later).map(ToString::to_string)).collect()
    }
}

/// The PTX of a kernel as a text.
fn words(name: &str, mut ptx: Vec<u8>) -> Result<String, String> {
    while ptx.last() == Some(&0) {
        ptx.pop();
    }
    String::from_utf8(ptx).map_err(|_| format!("kernel `{name}`: the PTX is no UTF-8"))
}
