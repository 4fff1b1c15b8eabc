//! NVRTC: programs whose "machine code" is their text, behind a mark.

use crate::kernel;
use crate::world::World;
use std::collections::HashMap;

/// The version, one that NVRTC never has, so that what it made is never taken for NVRTC's.
pub const VERSION: [i32; 2] = [13, 99];
/// The architectures that it knows.
pub const ARCHITECTURES: [i32; 4] = [80, 90, 100, 120];
/// What a module begins with: the bytes of an ELF file, then a name of its own.
pub const MARK: &[u8; 16] = b"\x7fELFfake module\0";

pub const INVALID_INPUT: u32 = 3;
pub const INVALID_PROGRAM: u32 = 4;
pub const INVALID_OPTION: u32 = 5;
pub const COMPILATION: u32 = 6;

/// A program.
#[derive(Debug, Default)]
pub struct Program {
    text: String,
    /// What the compiler said.
    pub log: String,
    /// The module.
    pub cubin: Option<Vec<u8>>,
}

/// The programs of all threads, by their handles.
pub type Programs = HashMap<u64, Program>;

impl Program {
    /// What stands for PTX once it is compiled: the text.
    pub fn ptx(&self) -> Option<&str> {
        self.cubin.as_ref().map(|_| self.text.as_str())
    }

    /// A program of a text.
    pub fn new(text: String) -> Program {
        Program { text, ..Program::default() }
    }

    /// Makes the module, or says in the log why there is none.
    pub fn compile(&mut self, options: &[String]) -> Result<(), u32> {
        let arch = options.iter().find_map(|option| option.strip_prefix("-arch=sm_").or(option.strip_prefix("-arch=compute_")));
        if !arch.is_some_and(|arch| ARCHITECTURES.iter().any(|known| known.to_string() == arch)) {
            self.log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n".into();
            return Err(INVALID_OPTION);
        }
        if !options.iter().any(|option| option == "-fmad=false") {
            self.log = "nvrtc: error: the host run fuses nothing by itself, so -fmad=false must be asked for\n".into();
            return Err(INVALID_OPTION);
        }
        let entries = kernel::split(&self.text).map_err(|e| format!("kernel.cu(1): error: {e}"));
        let entries = match entries.and_then(|split| kernel::entries(&split.body)) {
            Ok(entries) => entries,
            Err(e) => {
                self.log = format!("{e}\n\n1 error detected in the compilation of \"kernels\".\n");
                return Err(COMPILATION);
            }
        };
        self.log = "ptxas info    : 0 bytes gmem\n".into();
        for entry in entries {
            let (name, arch) = (&entry.name, arch.unwrap_or_default());
            let registers = 16 + 2 * (entry.operands.len() + entry.numbers).min(40);
            self.log += &format!(
                "ptxas info    : Compiling entry function '{name}' for 'sm_{arch}'\n\
                 ptxas info    : Function properties for {name}\n    \
                 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
                 ptxas info    : Used {registers} registers, used 1 barriers\n"
            );
        }
        let mut cubin = MARK.to_vec();
        cubin.extend((self.text.len() as u64).to_le_bytes());
        cubin.extend(self.text.as_bytes());
        self.cubin = Some(cubin);
        Ok(())
    }
}

impl World {
    /// A new program.
    pub fn new_program(&mut self, text: String) -> u64 {
        let id = self.id();
        self.programs.insert(id, Program::new(text));
        id
    }
}
