//! The text of kernels: what is prelude in it, and what the functions say of their operands.

use shardc_cuda_testing::job::Access;

/// The part of the prelude that the host run has another text for.
const DEVICE: &str = include_str!("../../../../codegen/src/prelude/device.cuh");
/// What comes between the prelude and the kernels.
const KERNELS: &str = "#line 1 \"kernel.cu\"\n";

/// A text in its parts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Split {
    /// The prelude without the part for the device.
    pub math: String,
    /// The kernels.
    pub body: String,
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The most threads of a block.
    pub threads: u32,
    /// The pointers that it takes.
    pub operands: Vec<Contract>,
    /// How many numbers it takes behind them.
    pub numbers: usize,
    /// The text, by its number in the library.
    pub text: usize,
}

/// What a function says of a pointer: `//@ NAME read|written|updated TYPE BYTES bytes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contract {
    /// The name.
    pub name: String,
    /// What is done with the memory.
    pub access: Access,
    /// How many bytes may be touched.
    pub bytes: u64,
}

/// Takes a text apart.
pub fn split(text: &str) -> Result<Split, String> {
    // The first line names the text.
    let text = match text.strip_prefix("#line ") {
        Some(rest) => rest.split_once('\n').map_or("", |(_, rest)| rest),
        None => text,
    };
    let rest = text.strip_prefix(DEVICE).ok_or("the text does not begin with the prelude of the device")?;
    let (math, body) = rest.split_once(KERNELS).ok_or("the text has no kernels behind the prelude")?;
    Ok(Split { math: math.into(), body: body.into() })
}

/// The functions of a text of kernels.
pub fn entries(body: &str) -> Result<Vec<Entry>, String> {
    let mut found = vec![];
    let mut operands = vec![];
    let mut lines = body.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let wrong = |what: &str| format!("kernel.cu({}): error: {what}", number + 1);
        if let Some(contract) = line.strip_prefix("//@ ") {
            operands.push(contract_of(contract).ok_or_else(|| wrong("no contract of an operand"))?);
            continue;
        }
        let Some(head) = line.strip_prefix("KERNEL(") else { continue };
        let mut head = head.to_owned();
        while !head.contains('{') {
            let (_, line) = lines.next().ok_or_else(|| wrong("a function has no body"))?;
            head.push_str(line);
        }
        let (mut entry, pointers) = head_of(&head).ok_or_else(|| wrong("no head of a function"))?;
        if pointers != operands.len() {
            let (name, contracts) = (&entry.name, operands.len());
            return Err(wrong(&format!("{name} takes {pointers} pointers, and has contracts of {contracts}")));
        }
        entry.operands = std::mem::take(&mut operands);
        found.push(entry);
    }
    match found.is_empty() {
        true => Err("kernel.cu(1): error: the text has no kernel".into()),
        false => Ok(found),
    }
}

fn contract_of(line: &str) -> Option<Contract> {
    let mut words = line.split_whitespace();
    let name = words.next()?.to_owned();
    let access = match words.next()? {
        "read" => Access::Read,
        "written" if name == "fault" => Access::Fault,
        "written" => Access::Write,
        "updated" => Access::Update,
        _ => return None,
    };
    let bytes = words.nth(1)?.parse().ok()?;
    Some(Contract { name, access, bytes })
}

/// What `THREADS) NAME(PARAMETERS) {` says, and how many pointers it takes.
fn head_of(head: &str) -> Option<(Entry, usize)> {
    let (threads, rest) = head.split_once(')')?;
    let (name, rest) = rest.split_once('(')?;
    let parameters: Vec<&str> = rest.split_once(')')?.0.split(',').map(str::trim).filter(|p| !p.is_empty()).collect();
    let pointers = parameters.iter().filter(|p| p.contains('*')).count();
    let numbers = parameters.iter().filter(|p| p.starts_with("i64 ") || p.starts_with("const i64 ")).count();
    let is_known = pointers + numbers == parameters.len() && parameters[..pointers].iter().all(|p| p.contains('*'));
    let threads = threads.trim().parse().ok().filter(|n| (1..=1024).contains(n))?;
    is_known.then(|| (Entry { name: name.trim().into(), threads, operands: vec![], numbers, text: 0 }, pointers))
}
