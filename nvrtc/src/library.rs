//! The calls of the library. Each program is made, compiled, read and destroyed by one thread, and
//! none of the library's pointers leaves this file.
#![allow(unsafe_code, reason = "the library is one of C")]

use cudarc::nvrtc::result;
use cudarc::nvrtc::sys::{self, nvrtcProgram};
use std::ffi::{CStr, c_char};

/// The functions that are called, here or by `result`.
const FUNCTIONS: [&str; 12] = [
    "nvrtcVersion",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetSupportedArchs",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetPTXSize",
    "nvrtcGetPTX",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
];

const HOW: &str = "NVRTC comes with the CUDA toolkit, or with `pip install nvidia-cuda-nvrtc`; the folder that holds it \
                   (of the package, `nvidia/cu13/lib` in site-packages) must be in `LD_LIBRARY_PATH`";

/// The proof that the library is open and has all [`FUNCTIONS`].
#[derive(Debug, Clone)]
pub struct Library(());

/// What a text becomes.
#[derive(Debug)]
pub struct Made {
    /// The machine code, where the architecture is a real one.
    pub cubin: Vec<u8>,
    /// The PTX, which has a zero byte at its end.
    pub ptx: Vec<u8>,
    /// What the compiler said.
    pub log: String,
}

/// Why nothing was made.
#[derive(Debug)]
pub struct Failed {
    /// The library's name of the error.
    pub code: String,
    /// What the compiler said, which may be nothing.
    pub log: String,
}

impl Library {
    /// The library, opened under the first of its names that there is.
    pub fn open() -> Result<Library, String> {
        // SAFETY: libraries run code of their own when they are opened; that of NVRTC is trusted.
        if !unsafe { sys::is_culib_present() } {
            let names = cudarc::get_lib_name_candidates("nvrtc");
            let major = |name: &String| name.rsplit('.').next().is_some_and(|n| ["12", "13"].contains(&n));
            let names: Vec<String> = names.iter().take(1).chain(names.iter().filter(|n| major(n))).cloned().collect();
            return Err(format!("NVRTC is not there (looked for {}); {HOW}", names.join(", ")));
        }
        for name in FUNCTIONS {
            // SAFETY: the library was just opened under these names; the symbol is not called.
            let found = unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()).is_ok() };
            if !found {
                return Err(format!("the NVRTC that was found lacks `{name}`, so it is too old or not NVRTC; {HOW}"));
            }
        }
        Ok(Library(()))
    }

    /// The version: major, minor.
    pub fn version(&self) -> Result<(i32, i32), String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are to one integer each.
        unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }
            .result()
            .map_err(|e| format!("NVRTC has no version: {e}"))?;
        Ok((major, minor))
    }

    /// The architectures that it compiles for.
    pub fn architectures(&self) -> Result<Vec<u32>, String> {
        let mut count = 0;
        let failed = |e| format!("NVRTC does not say its architectures: {e}");
        // SAFETY: the pointer is to one integer.
        unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) }.result().map_err(failed)?;
        let mut found = vec![0; usize::try_from(count).unwrap_or(0)];
        if found.is_empty() {
            return Ok(vec![]);
        }
        // SAFETY: the array has as many places as the library just said that it writes.
        unsafe { sys::nvrtcGetSupportedArchs(found.as_mut_ptr()) }.result().map_err(failed)?;
        Ok(found.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect())
    }

    /// What `text` becomes.
    pub fn compile(&self, name: &CStr, text: &CStr, options: &[String]) -> Result<Made, Failed> {
        let failed = |e: result::NvrtcError, log: &str| Failed { code: e.to_string(), log: log.to_string() };
        let program = Program(result::create_program(text, Some(name)).map_err(|e| failed(e, ""))?);
        // SAFETY: the program lives until the end of this function, and no option has a zero byte.
        let compiled = unsafe { result::compile_program(program.0, options) };
        // SAFETY: the program lives; its log is there whether it was compiled or not.
        let log = unsafe { result::get_program_log(program.0) };
        let log = String::from_utf8_lossy(&bytes(log.unwrap_or_default())).into_owned();
        compiled.map_err(|e| failed(e, &log))?;
        let cubin = program.cubin().map_err(|e| failed(e, &log))?;
        // SAFETY: the program lives and is compiled.
        let ptx = unsafe { result::get_ptx(program.0) }.map(bytes).map_err(|e| failed(e, &log))?;
        Ok(Made { cubin, ptx, log })
    }
}

/// A program of the library, destroyed with this value.
struct Program(nvrtcProgram);

impl Program {
    fn cubin(&self) -> Result<Vec<u8>, result::NvrtcError> {
        let mut size = 0;
        // SAFETY: the program lives, and the pointer is to one integer.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut size) }.result()?;
        if size == 0 {
            return Ok(vec![]);
        }
        let mut cubin = vec![0u8; size];
        // SAFETY: the program lives, and the array has as many bytes as the library just said.
        unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast::<c_char>()) }.result()?;
        Ok(cubin)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program lives, and nothing uses it afterwards. It fails for null only.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn bytes(chars: Vec<c_char>) -> Vec<u8> {
    chars.into_iter().map(|c| c.to_ne_bytes()[0]).collect()
}
