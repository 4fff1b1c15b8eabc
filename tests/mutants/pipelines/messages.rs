//! Messages that are dropped, doubled, for another rank, of another micro-batch, of another value.

use super::ends::{End, change, change_message, ends, messages_of, remove};
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{BufferId, BufferKind, Program, Row, View};
use shardc_testkit::random::Random;

fn pick(set: &PlanSet, random: &mut Random) -> Option<End> {
    random.pick(&ends(set))
}

/// A message is dropped at one end or both, of one micro-batch or of all.
pub fn dropped(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let end = pick(set, random)?;
    let (text, how) = (end.text(set), random.below(4));
    let of_message = |set: &PlanSet, end: End| -> Vec<End> {
        let same = |other: &End| other.program == end.program && other.entry(set).0 == end.entry(set).0;
        ends(set).into_iter().filter(same).collect()
    };
    let mut all = end.with_other(set, how % 2 == 0);
    if how > 1 {
        all = all.into_iter().flat_map(|end| of_message(set, end)).collect();
    }
    all.sort_by_key(|end| (end.row, end.at));
    for end in all.into_iter().rev() {
        remove(set, end);
    }
    Some(format!("{text}, way {how}"))
}

/// A message is there twice, at one end or both, in its row or a later one.
pub fn doubled(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let end = pick(set, random)?;
    let (text, both, later) = (end.text(set), random.below(2) == 0, random.below(3));
    for End { program, row, at } in end.with_other(set, both) {
        let order = &mut set.programs[program].order;
        let entry = messages_of(&order[row])[at];
        match later {
            0 => {
                let Row::Exchange(messages) = &mut order[row] else { return None };
                messages.insert(at, entry);
            }
            1 => order.insert((row + 2 + random.below(3)).min(order.len()), Row::Exchange(vec![entry])),
            _ => order.push(Row::Exchange(vec![entry])),
        }
    }
    Some(format!("{text}, both {both}, way {later}"))
}

/// A message goes to another rank, or crosses another axis; at one end or both.
pub fn other_peer(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let end = pick(set, random)?;
    let mesh = set.mesh().clone();
    let (text, how, both) = (end.text(set), random.below(3), random.below(2) == 0);
    let axis = AxisId(random.below(mesh.rank_axes().len()) as u8);
    let by = 1 + random.below(set.of.len() - 1) as u64;
    let other = |peer: u64, size: usize| (peer + by) % size as u64;
    let positions = set.of.len();
    match how {
        // Of all micro-batches.
        0 => {
            let all = end.with_other(set, both).into_iter().map(|end| (end.program, end.entry(set).0 as usize));
            for (program, message) in all.collect::<Vec<_>>() {
                let message = &mut set.programs[program].messages[message];
                message.peer = other(message.peer, positions);
            }
        }
        1 => end.with_other(set, both).into_iter().for_each(|end| {
            change_message(set, end, |message| message.peer = other(message.peer, positions));
        }),
        _ if axis == set.axes[0] => return None,
        _ => end.with_other(set, both).into_iter().for_each(|end| change_message(set, end, |message| message.axis = axis)),
    }
    Some(format!("{text}, way {how}, both {both}, by {by}, axis {}", axis.0))
}

/// A message is of another micro-batch, or two exchange theirs; at one end or both.
pub fn other_time(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let end = pick(set, random)?;
    let all = set.mesh().microbatches();
    let (text, both, (message, time)) = (end.text(set), random.below(2) == 0, end.entry(set));
    let to = random.below(all as usize) as u64;
    if to == time {
        return None;
    }
    let exchange = random.below(2) == 0;
    let pairs = end.with_other(set, both);
    let partner = |set: &PlanSet, end: &End| {
        let (message, _) = end.entry(set);
        ends(set).into_iter().find(|other| other.program == end.program && other.entry(set) == (message, to))
    };
    let partners: Vec<Option<End>> = pairs.iter().map(|end| partner(set, end)).collect();
    for (end, partner) in pairs.into_iter().zip(partners) {
        change(set, end, |entry| entry.1 = to);
        if let Some(partner) = partner.filter(|_| exchange) {
            change(set, partner, |entry| entry.1 = time);
        }
    }
    Some(format!("{text} (message {message}) is of {to}, both {both}, exchanged {exchange}"))
}

/// Two messages of one size, one way and one peer exchange places; at one end or both.
pub fn other_message(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let end = pick(set, random)?;
    let alike = |other: &End| {
        let (a, b) = (end.message(set), other.message(set));
        let of = |message: &shardc_ir::plan::Message| (message.sends, message.peer, message.view.bytes);
        end.program == other.program && end.entry(set).0 != other.entry(set).0 && of(a) == of(b)
    };
    let other = random.pick(&ends(set).into_iter().filter(alike).collect::<Vec<_>>())?;
    let (text, both) = (format!("{} and {}", end.text(set), other.text(set)), random.below(2) == 0);
    let how = random.below(2);
    let (here, there) = (end.with_other(set, both), other.with_other(set, both));
    for (a, b) in here.into_iter().zip(there) {
        let (first, second) = (a.entry(set), b.entry(set));
        change(set, a, |entry| entry.0 = second.0);
        if how == 0 {
            change(set, a, |entry| entry.1 = second.1);
            change(set, b, |entry| *entry = first);
        }
    }
    Some(format!("{text}, both {both}, way {how}"))
}

/// A message takes another buffer of equal size, or another part of its own.
pub fn other_view(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let end = pick(set, random)?;
    let (text, how) = (end.text(set), random.below(4));
    let view = end.message(set).view;
    let view = match how {
        0 => View { offset: view.offset + 8, ..view },
        1 => View { bytes: view.bytes / 2, ..view },
        _ => View { buffer: alike(&set.programs[end.program], view.buffer, random)?, ..view },
    };
    if random.below(2) == 0 {
        change_message(set, end, |message| message.view = view);
    } else {
        let message = end.entry(set).0 as usize;
        set.programs[end.program].messages[message].view = view;
    }
    // Both ends of another part.
    if how < 2 && random.below(2) == 0 {
        let other = end.other(set)?;
        change_message(set, other, |message| (message.view.offset, message.view.bytes) = (view.offset, view.bytes));
    }
    Some(format!("{text}: {view:?}, way {how}"))
}

/// Another buffer of the type and size of one, touched by something.
fn alike(program: &Program, id: BufferId, random: &mut Random) -> Option<BufferId> {
    let of = |id: BufferId| {
        let buffer = &program.buffers[id.index()];
        (buffer.dtype, buffer.local.iter().product::<u64>())
    };
    let own = &program.buffers[id.index()];
    let others = (0..program.buffers.len() as u32).map(BufferId).filter(|other| {
        let kind = &program.buffers[other.index()].kind;
        *other != id && of(*other) == of(id) && (!matches!(kind, BufferKind::Constant(_)) || *kind == own.kind)
    });
    random.pick(&others.collect::<Vec<_>>())
}

/// A message says that it is of another op, at one end or both.
pub fn other_op(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let end = pick(set, random)?;
    let (text, both) = (end.text(set), random.below(2) == 0);
    let own = end.message(set).provenance.ops.clone();
    let all = set.programs.iter().flat_map(|program| &program.messages).map(|message| message.provenance.ops.clone());
    let other = random.pick(&all.filter(|ops| *ops != own).collect::<Vec<_>>())?;
    // The bytes go elsewhere too, so that both say the truth of one another.
    let taken = end.message(set).sends && random.below(2) == 0;
    let here = set.programs[end.program].messages.iter().find(|message| message.provenance.ops == other).cloned();
    for end in end.with_other(set, both) {
        change_message(set, end, |message| message.provenance.ops = other.clone());
    }
    if let Some(here) = here.filter(|_| taken) {
        change_message(set, end, |message| message.view = here.view);
    }
    Some(format!("{text} is of {other:?}, both {both}"))
}

/// Messages of one row to or from one rank come in another order, at one end or both; or the whole
/// row is turned round.
pub fn reordered(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let end = pick(set, random)?;
    let way = |end: &End| (end.message(set).sends, end.message(set).peer);
    let same =
        |other: &End| (other.program, other.row) == (end.program, end.row) && other.at != end.at && way(other) == way(&end);
    let other = random.pick(&ends(set).into_iter().filter(same).collect::<Vec<_>>())?;
    let (text, entries) = (end.text(set), (end.entry(set), other.entry(set)));
    change(set, end, |entry| *entry = entries.1);
    change(set, other, |entry| *entry = entries.0);
    Some(format!("{text} and place {}", other.at))
}
