//! How well launches use sectors of global memory and banks of shared memory. What is below the
//! limits has a reason, which its elements show.

use super::Case;
use shardc_codegen::Launch;
use shardc_codegen::generated::Accesses;
use shardc_cuda_testing::ptx::{Counts, Sectors};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Conv, ConvResult, Fill, Kernel, RowProgram, WindowDim};
use shardc_ir::mesh::Mesh;
use std::collections::BTreeMap;
use std::io::Write as _;

/// The part of the touched sectors' bytes that launches use at least.
const USED: f64 = 0.8;

/// The part that is used at least where rows begin within sectors: 32 bytes of a warp lie in two.
const BETWEEN: f64 = 0.5;

/// Wavefronts of a phase at most.
const WAVEFRONTS: f64 = 1.1;

/// Those at most where the taps of a row are written to several lines of shared memory.
const WAVEFRONTS_OF_TAPS: f64 = 1.2;

/// Sectors from which on they say something: four for each lane of a warp.
const SECTORS: u64 = 128;

/// Bytes of a sector, and of 32 lanes that each access 4.
const SECTOR: u64 = 32;
const LINE: u64 = 128;

/// The launches below a limit for each form and reason, with the least part of sectors or of
/// wavefronts that was used.
pub type Listed = BTreeMap<(&'static str, &'static str), (usize, f64)>;

/// Holds a launch against the limits and lists it where it is below them with a reason.
///
/// # Errors
/// If it has none.
pub fn judge(case: &Case, launch: &Launch, counts: &Counts, listed: &mut Listed) -> Result<(), String> {
    let mut list = |reason, used| add(listed, (case.kernel.name(), reason), (1, used));
    let all = sum(&counts.operands);
    if all.touched >= SECTORS && all.used() < USED {
        let excused: Vec<Option<&'static str>> =
            (0..counts.operands.len()).map(|at| reason(case, launch, at, counts.operands[at])).collect();
        let others: Vec<Sectors> =
            counts.operands.iter().zip(&excused).filter(|(_, reason)| reason.is_none()).map(|(sectors, _)| *sectors).collect();
        if sum(&others).used() < USED {
            return Err(format!("{} uses {:.0} % of the sectors: {}", launch.entry, all.used() * 100.0, told(launch, counts)));
        }
        let mut reasons: Vec<&'static str> = excused.into_iter().flatten().collect();
        reasons.sort_unstable();
        reasons.dedup();
        reasons.into_iter().for_each(|reason| list(reason, all.used()));
    }
    let each = counts.wavefronts_each();
    if each > WAVEFRONTS {
        match &case.kernel {
            Kernel::Contract(_) => list("plain: lanes meet in banks", 1.0 / each),
            // Lines are as far apart as makes lanes meet least.
            Kernel::Conv(conv) if each <= WAVEFRONTS_OF_TAPS && conv.result != ConvResult::Weight && has_taps(conv) => {
                list("taps are neighbours in memory, and not in shared memory", 1.0 / each);
            }
            _ => return Err(format!("{} takes {each:.2} wavefronts a phase", launch.entry)),
        }
    }
    Ok(())
}

/// Whether a convolution's windows have several taps.
fn has_taps(conv: &Conv) -> bool {
    conv.window.iter().any(|dim| dim.kernel > 1)
}

/// Why accesses to the operand `at` use less of its sectors than others do.
fn reason(case: &Case, launch: &Launch, at: usize, sectors: Sectors) -> Option<&'static str> {
    if sectors.used() >= USED {
        return None;
    }
    if matches!(case.kernel, Kernel::Contract(_)) {
        return Some("plain: for what no library takes");
    }
    let own = || launch.accesses.iter().filter(|accesses| accesses.parameter == at);
    let threads = u64::from(launch.block) * launch.grid.iter().map(|n| u64::from(*n)).product::<u64>();
    let elements = |accesses: &Accesses| accesses.terms.iter().map(|(count, _)| count).product::<u64>() * accesses.width;
    if own().any(|accesses| accesses.is_chosen) {
        Some("data choose its elements")
    } else if own().all(|accesses| elements(accesses) * 8 <= threads) {
        Some("an element of it is of many threads")
    } else if matches!(case.kernel, Kernel::MaxPool(_) | Kernel::MaxPoolGrad(_)) {
        Some("its windows step over neighbours")
    } else if let Kernel::Conv(conv) = &case.kernel {
        let bytes = own().map(|accesses| accesses.bytes).next().unwrap_or(1);
        of_convolution(conv, &launch.parameters[at].name, bytes, sectors)
    } else if own().any(|accesses| row(case, accesses) * accesses.bytes < LINE) {
        Some("its rows are shorter than a line")
    } else if sectors.used() >= BETWEEN && own().any(|accesses| is_between(row(case, accesses), elements(accesses), accesses)) {
        Some("its rows begin within sectors")
    } else {
        None
    }
}

/// The same for an operand of a convolution, whose rows are those of planes, or the taps that make
/// one result.
fn of_convolution(conv: &Conv, name: &str, bytes: u64, sectors: Sectors) -> Option<&'static str> {
    let steps_over = conv.window.iter().any(|dim| dim.stride > 1);
    let is_single = |dim: &&WindowDim| dim.kernel == 1 && dim.input == dim.output;
    let whole = conv.window.iter().rev().take_while(is_single).count();
    let inner = |size: fn(&WindowDim) -> u64| conv.window.iter().rev().take(whole + 1).map(size).product::<u64>();
    let row = match name {
        "x" => inner(|dim| dim.input),
        "y" => inner(|dim| dim.output),
        _ => conv.inputs * conv.window.iter().map(|dim| dim.kernel).product::<u64>(),
    };
    if steps_over && name == "x" {
        Some("its windows step over neighbours")
    } else if steps_over && name == "w" && conv.result == ConvResult::Input {
        Some("a residue by the stride is of some taps of each kernel")
    } else if row * bytes < LINE {
        Some("its rows are shorter than a line")
    } else if sectors.used() >= BETWEEN && whole < conv.window.len() {
        Some("what taps see begins within sectors")
    } else if sectors.used() >= BETWEEN && !(row * bytes).is_multiple_of(SECTOR) {
        Some("its rows begin within sectors")
    } else {
        None
    }
}

/// Whether there are several rows, which begin anywhere in a sector.
fn is_between(row: u64, elements: u64, accesses: &Accesses) -> bool {
    elements > row && !(row * accesses.bytes).is_multiple_of(SECTOR)
}

/// Neighbouring elements that threads which work together reach one after another.
fn row(case: &Case, accesses: &Accesses) -> u64 {
    match &case.kernel {
        Kernel::Rowwise(rowwise) if matches!(rowwise.program, RowProgram::Rotary { .. }) => rowwise.width / 2,
        Kernel::Rowwise(rowwise) => rowwise.width,
        Kernel::Reduce(_) | Kernel::Attention(_) | Kernel::AttentionGrad(_) => innermost(accesses),
        Kernel::Bundle(bundle) if bundle.rows > 1 => innermost(accesses),
        _ => run(accesses),
    }
}

/// Those of the innermost dimension, where others are not joined to it.
fn innermost(accesses: &Accesses) -> u64 {
    run(&Accesses { terms: accesses.terms.last().copied().into_iter().collect(), ..accesses.clone() })
}

/// Neighbouring elements that are reached one after another.
fn run(accesses: &Accesses) -> u64 {
    let mut run = accesses.width;
    for (count, stride) in accesses.terms.iter().rev() {
        if stride.unsigned_abs() != run {
            break;
        }
        run *= count;
    }
    run
}

fn sum(all: &[Sectors]) -> Sectors {
    all.iter().fold(Sectors::default(), |sum, own| Sectors { touched: sum.touched + own.touched, bytes: sum.bytes + own.bytes })
}

fn told(launch: &Launch, counts: &Counts) -> String {
    let one = |(at, sectors): (usize, &Sectors)| {
        let own = launch.accesses.iter().filter(|accesses| accesses.parameter == at);
        let terms: Vec<_> = own.map(|accesses| (accesses.bytes, accesses.width, &accesses.terms)).collect();
        format!("{} {:.0} % of {} {terms:?}", launch.parameters[at].name, sectors.used() * 100.0, sectors.touched)
    };
    let of: Vec<String> = counts.operands.iter().enumerate().map(one).collect();
    of.join(", ")
}

fn add(listed: &mut Listed, key: (&'static str, &'static str), (launches, used): (usize, f64)) {
    let entry = listed.entry(key).or_insert((0, used));
    *entry = (entry.0 + launches, entry.1.min(used));
}

/// Several lists as one.
pub fn together<'a>(lists: impl Iterator<Item = &'a Listed>) -> Listed {
    let mut all = Listed::new();
    lists.flatten().for_each(|(key, own)| add(&mut all, *key, *own));
    all
}

/// Writes the list for people, past the harness, which keeps what a passing test prints.
pub fn print(listed: &Listed) -> std::io::Result<()> {
    let mut to = std::io::stderr().lock();
    if !listed.is_empty() {
        writeln!(to, "launches that use less than 80 % of sectors or of wavefronts, the least part, and why:")?;
    }
    for ((form, reason), (launches, least)) in listed {
        writeln!(to, "{form:>14} {launches:>5} {:>4.0} %  {reason}", least * 100.0)?;
    }
    Ok(())
}

#[test]
fn what_wastes_memory_is_told() {
    let mesh = Mesh::new([("dp".to_string(), 2)], 1);
    let fill = Kernel::Fill(Fill { dtype: DType::F32, count: 4096, value: 1.0 });
    let case = super::case("fill", fill, &[], &mesh, true);
    let launch = &case.generated.launches[0];
    let judged = |touched: u64, phases: u64| {
        let operands = vec![Sectors { touched, bytes: 4096 * 4 }];
        let counts = Counts { instructions: 1, operands, phases, wavefronts: 100 };
        let mut listed = Listed::new();
        judge(&case, launch, &counts, &mut listed).map(|()| listed.len())
    };
    assert_eq!(judged(640, 100), Ok(0));
    assert!(judged(641, 100).unwrap_err().contains("uses 80 % of the sectors"));
    assert!(judged(640, 90).unwrap_err().contains("takes 1.11 wavefronts"));
}
