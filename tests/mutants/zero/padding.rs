//! What fills up a line: zeros that are not written, or written over, and elements that are read
//! where they are not.

use super::{is_scratch, touches};
use crate::foreign;
use crate::mutate::{places, step};
use shardc_ir::kernel::{Fill, Kernel};
use shardc_ir::plan::{BufferKind, Program, Step, View};
use shardc_testkit::random::Random;

/// The zeros behind a line are not written, are too few, other numbers, or written too late.
pub fn not_filled(program: &mut Program, random: &mut Random) -> Option<String> {
    let fills = |step: &Step| matches!(step.kernel, Kernel::Fill(_)) && step.writes.iter().all(|view| is_scratch(program, view));
    let (t, s) = random.pick(&places(program, fills))?;
    let mesh = program.mesh.clone();
    let steps = &mut program.tasks[t].steps;
    let text = steps[s].text();
    let how = random.below(5);
    match (how, &mut steps[s].kernel) {
        (0, _) => drop(steps.remove(s)),
        (1, Kernel::Fill(fill)) => {
            fill.count -= 1 + random.below(2.min(fill.count as usize)) as u64;
            foreign::fit(&mut steps[s], &mesh)?;
        }
        (2, Kernel::Fill(fill)) => fill.value = [1.0, -1.0, 1e-3, f64::NAN][random.below(4)],
        (3, _) => steps.swap(s, s + 1),
        _ => {
            // Behind some later step.
            let to = s + 2 + random.below(steps.len() - s - 2);
            steps[s..=to].rotate_left(1);
        }
    }
    Some(format!("`{text}` {t}.{s}, way {how}"))
}

/// A line is copied from or to behind its beginning, or with more or fewer elements.
pub fn copied(program: &mut Program, random: &mut Random) -> Option<String> {
    let copies = |step: &Step| matches!(step.kernel, Kernel::Move(_)) && touches(program, step);
    let (t, s) = random.pick(&places(program, copies))?;
    let mesh = program.mesh.clone();
    let step = &mut program.tasks[t].steps[s];
    let text = step.text();
    let Kernel::Move(copy) = &mut step.kernel else { return None };
    let by = 1 + random.below(2) as i64;
    let size = copy.shape.first_mut()?;
    let how = random.below(6);
    match how {
        0 => copy.src_offset.base += by,
        1 => copy.dst_offset.base += by,
        2 => *size += by as u64,
        3 => *size = size.saturating_sub(by as u64),
        4 => copy.src_strides = vec![-1],
        _ => copy.src_strides = vec![0],
    }
    let fitted = random.below(2) == 0 && foreign::fit(step, &mesh).is_some();
    Some(format!("`{text}` {t}.{s} by {by}, way {how}, fitted {fitted}"))
}

/// A call takes ranges that are shorter or longer, of one of its operands.
pub fn ranges(program: &mut Program, random: &mut Random) -> Option<String> {
    let mesh = program.mesh.clone();
    let calls = |step: &Step| matches!(step.kernel, Kernel::Collective(_)) && touches(program, step);
    let (t, s) = random.pick(&places(program, calls))?;
    let step = &mut program.tasks[t].steps[s];
    let text = step.text();
    let Kernel::Collective(call) = &mut step.kernel else { return None };
    let operand = random.below(call.counts.len());
    let before = call.counts[operand];
    call.counts[operand] = if random.below(2) == 0 { before.saturating_sub(1) } else { before + 1 };
    let text = format!("`{text}` {t}.{s}: operand {operand} with {} elements, not {before}", call.counts[operand]);
    let fitted = random.below(3) > 0 && foreign::fit(step, &mesh).is_some();
    Some(format!("{text}, fitted {fitted}"))
}

/// Something is written into a gradient's or a state's range behind it was complete: zeros, or what
/// another step computes.
pub fn written_over(program: &mut Program, random: &mut Random) -> Option<String> {
    let of = |view: &View| {
        let buffer = &program.buffers[view.buffer.index()];
        matches!(buffer.kind, BufferKind::State(_) | BufferKind::Gradient(_)) && !buffer.sharding.flat.is_empty()
    };
    let all = places(program, |step| step.writes.iter().any(of));
    let (t, s) = random.pick(&all)?;
    let own: Vec<View> = program.tasks[t].steps[s].writes.iter().copied().filter(of).collect();
    let view = random.pick(&own)?;
    let buffer = &program.buffers[view.buffer.index()];
    let (element, last) = (buffer.dtype.bytes(), random.below(2) == 0);
    // The last element, which may be what fills it up, or all.
    let count = if last { 1 } else { view.bytes / element };
    let value = [0.0, 1.0, 1e-3][random.below(3)];
    let view = View { offset: view.offset + view.bytes - count * element, bytes: count * element, ..view };
    let kernel = Kernel::Fill(Fill { dtype: buffer.dtype, count, value });
    let like = step(program, random, |step| matches!(step.kernel, Kernel::Fill(_)))?.clone();
    let to = s + 1 + random.below(program.tasks[t].steps.len() - s);
    program.tasks[t].steps.insert(to, Step { kernel, writes: vec![view], ..like });
    Some(format!("{count} of buffer {} are {value} at {t}.{to}", view.buffer.0))
}
