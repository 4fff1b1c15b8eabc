//! Which kernels of a task are carried out together, as a bundle.
//!
//! Reductions over the same rows, with what is made of their results row by row, go together, so
//! that a row is brought near once: the loss over classes, with its gradient, is such a bundle. So
//! do a map whose result others need and the maps that read it, such as a wide gradient and its
//! rounded copy, which then is not read back; and the updates of parameters by one program, as one
//! launch.
//!
//! Before: `%m = reduce_max %x`, `%s = map(sub, exp, sum) %x, %m`, `%loss = sum %s`,
//! `%d = map(sub, exp, div) %x, %m, %s`. After: the bundle of `%m`, `%s`, `%d`, then `%loss`. A
//! member never waits for what another step makes of the bundle's own results. Sources: Karpathy,
//! llm.c (2024), for the fused classifier; NVIDIA, Apex, for updates of many tensors.

use super::fuse::Fusion;
use shardc_ir::graph::{NodeId, Part, ValueId};
use shardc_ir::kernel::signature::row_major;
use shardc_ir::kernel::{Form, Kernel, Map, Reduce};
use shardc_ir::limits::MAX_MEMBERS;
use shardc_ir::lower::Lowered;
use shardc_ir::lower::bundled::{Bundled, bundle};
use shardc_ir::lower::fused::Fused;
use shardc_ir::lower::graph::LoweredGraph;
use shardc_ir::scalar::{Binary, Instr};
use std::collections::{BTreeSet, HashMap, HashSet};

/// No more bundles may grow at a time, so that planning takes time in proportion to the nodes.
const MOST_OPEN: usize = 64;

/// Maps of fewer rows are not paired: a row is done by one part of a machine.
const PAIRED: u64 = 64;

/// What becomes of the nodes of a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Unit {
    /// A node by itself, if it is not computed inside others.
    Node(NodeId),
    /// Kernels that are one.
    Bundle(Bundled),
}

/// What the members of a bundle have in common.
#[derive(Debug, Clone, PartialEq)]
enum Bond {
    /// Rows of so many elements of one value.
    Rows { rows: u64, width: u64, of: ValueId },
    /// What maps make, element by element, of a value that another map writes.
    Elements { rows: u64, width: u64, of: ValueId },
    /// Updates by one program.
    Updates(Box<Map>),
}

/// A bundle that may still grow.
struct Open {
    bond: Bond,
    /// The place of the last node that could join.
    until: usize,
    ends: Vec<NodeId>,
    /// How many of them read the whole value.
    whole: usize,
    /// The nodes that need one of them and are none.
    behind: HashSet<NodeId>,
}

impl Open {
    fn is_pair(&self) -> bool {
        matches!(self.bond, Bond::Elements { .. })
    }

    fn is_read_by(&self, sources: &[NodeId]) -> bool {
        sources.iter().any(|source| self.ends.contains(source))
    }

    fn is_before(&self, sources: &[NodeId]) -> bool {
        sources.iter().any(|source| self.behind.contains(source))
    }
}

/// The units of a task, in an order in which they can run.
pub fn units(lowered: &LoweredGraph<'_>, fusion: &Fusion, nodes: &[NodeId]) -> Vec<Unit> {
    let alone = || nodes.iter().copied().map(Unit::Node).collect();
    let bundles = bundles(lowered, fusion, nodes);
    if bundles.is_empty() { alone() } else { ordered(lowered, fusion, nodes, bundles).unwrap_or_else(alone) }
}

fn bundles(lowered: &LoweredGraph<'_>, fusion: &Fusion, nodes: &[NodeId]) -> Vec<Bundled> {
    let mut last_readers = LastReaders::new(lowered, fusion, nodes);
    let (mut open, mut closed): (Vec<Open>, Vec<Open>) = (vec![], vec![]);
    for (at, id) in nodes.iter().copied().enumerate().filter(|(_, id)| !fusion.is_inlined(*id)) {
        closed.extend(open.extract_if(.., |open| open.until < at || open.ends.len() == MAX_MEMBERS));
        let fused = may_join(lowered, id, &open).then(|| fusion.kernel(lowered, id));
        if open.is_empty() && fused.is_none() {
            continue;
        }
        let sources = sources(lowered, fusion, id);
        let fits = |open: &Open, fused: &Fused| !open.is_before(&sources) && joins(fused, &open.bond, open.is_read_by(&sources));
        // Rows that are reduced are worth more than a value that is not read back.
        let last = |fused: &Fused, first: bool| open.iter().rposition(|open| open.is_pair() != first && fits(open, fused));
        let joined = fused.as_ref().and_then(|fused| last(fused, true).or_else(|| last(fused, false)));
        for (number, open) in open.iter_mut().enumerate() {
            if joined == Some(number) {
                open.ends.push(id);
                open.whole += usize::from(fused.as_ref().is_some_and(|fused| reads_whole(fused, &open.bond)));
            } else if open.is_read_by(&sources) || open.is_before(&sources) {
                open.behind.insert(id);
            }
        }
        if let (None, Some(fused)) = (joined, fused) {
            let begun = bonds(lowered, id, &fused).into_iter().map(|bond| {
                let until = match &bond {
                    Bond::Rows { of, .. } | Bond::Elements { of, .. } => last_readers.of(*of),
                    Bond::Updates(_) => nodes.len(),
                };
                Open { bond, until, ends: vec![id], whole: 1, behind: HashSet::new() }
            });
            open.extend(begun.filter(|open| open.until > at));
            closed.extend(open.drain(..open.len().saturating_sub(MOST_OPEN)));
        }
    }
    closed.append(&mut open);
    closed.sort_by_key(Open::is_pair);
    let mut taken: HashSet<NodeId> = HashSet::new();
    let mut bundles = vec![];
    for open in closed {
        let is_worth = open.ends.len() > 1 && open.whole > 1 && open.ends.iter().all(|end| !taken.contains(end));
        let Some(bundled) = is_worth.then(|| bundled(lowered, fusion, &open)).flatten() else { continue };
        taken.extend(&open.ends);
        bundles.push(bundled);
    }
    bundles
}

/// Where in a task values are read last.
struct LastReaders<'a, 'g> {
    lowered: &'a LoweredGraph<'g>,
    fusion: &'a Fusion,
    places: HashMap<NodeId, usize>,
    known: HashMap<ValueId, usize>,
}

impl<'a, 'g> LastReaders<'a, 'g> {
    fn new(lowered: &'a LoweredGraph<'g>, fusion: &'a Fusion, nodes: &[NodeId]) -> LastReaders<'a, 'g> {
        let places = nodes.iter().enumerate().map(|(at, id)| (*id, at)).collect();
        LastReaders { lowered, fusion, places, known: HashMap::new() }
    }

    /// The place of the last kernel that reads a stored value; 0 where none does.
    fn of(&mut self, value: ValueId) -> usize {
        let LastReaders { lowered, fusion, places, known } = self;
        *known.entry(value).or_insert_with(|| {
            let kernels = lowered.readers[value.index()].iter().flat_map(|reader| fusion.kernels(*reader));
            kernels.filter_map(|kernel| places.get(kernel)).copied().max().unwrap_or(0)
        })
    }
}

fn bundled(lowered: &LoweredGraph<'_>, fusion: &Fusion, open: &Open) -> Option<Bundled> {
    let rows = match open.bond {
        Bond::Rows { rows, .. } | Bond::Elements { rows, .. } => rows,
        Bond::Updates(_) => 1,
    };
    let bundled = bundle(lowered, rows, &open.ends, &|id| fusion.is_inlined(id))?;
    bundled.bundle.signature(&lowered.graph.mesh).is_ok().then_some(bundled)
}

/// Whether a node could be a member of a bundle, as far as its sizes show.
fn may_join(lowered: &LoweredGraph<'_>, id: NodeId, open: &[Open]) -> bool {
    let node = lowered.graph.node(id);
    match lowered.node(id) {
        Lowered::Reduce { .. } => true,
        Lowered::Map(_) if node.origin.part == Part::Update => node.results.iter().all(|v| is_root(lowered, *v)),
        Lowered::Map(_) if is_read_by_a_map(lowered, id) => true,
        Lowered::Map(_) => {
            let elements = lowered.extent(node.results[0]).elements();
            let fits = |open: &Open| match open.bond {
                Bond::Rows { rows, width, .. } => elements == rows || elements == rows * width,
                Bond::Elements { rows, width, .. } => elements == rows * width,
                Bond::Updates(_) => false,
            };
            open.iter().any(fits)
        }
        _ => false,
    }
}

/// Whether another map reads the one result of a map, as large as its own.
fn is_read_by_a_map(lowered: &LoweredGraph<'_>, id: NodeId) -> bool {
    let [result] = lowered.graph.node(id).results[..] else { return false };
    let elements = |value: ValueId| lowered.extent(value).elements();
    let is_like = |reader: &NodeId| {
        let makes = lowered.graph.node(*reader).results.first();
        matches!(lowered.node(*reader), Lowered::Map(_)) && makes.is_some_and(|made| elements(*made) == elements(result))
    };
    lowered.readers[lowered.stored_in(result).index()].iter().any(is_like)
}

fn is_root(lowered: &LoweredGraph<'_>, value: ValueId) -> bool {
    lowered.is_root[lowered.stored_in(value).index()]
}

/// The bundles that a kernel may begin.
fn bonds(lowered: &LoweredGraph<'_>, id: NodeId, fused: &Fused) -> Vec<Bond> {
    match &fused.kernel {
        Kernel::Reduce(reduce) => {
            let shape = &reduce.map.shape;
            let kept = reduce.reduced.iter().position(|reduced| *reduced).unwrap_or(shape.len());
            let goes = (kept..shape.len()).all(|d| reduce.reduced[d] || shape[d] == 1);
            let (rows, width) = (shape[..kept].iter().product(), shape[kept..].iter().product());
            if !goes || width < 2 || rows < 2 {
                return vec![];
            }
            whole(&reduce.map, fused).map(|of| Bond::Rows { rows, width, of }).collect()
        }
        Kernel::Map(map) if lowered.graph.node(id).origin.part == Part::Update => {
            of_any_size(map).map(|any| Bond::Updates(Box::new(any))).into_iter().collect()
        }
        Kernel::Map(map) if is_read_by_a_map(lowered, id) && !ends_a_product(lowered, map, fused) => {
            let Some((width, outer)) = map.shape.split_last() else { return vec![] };
            let (rows, of) = (outer.iter().product(), lowered.stored_in(lowered.graph.node(id).results[0]));
            if *width < 2 || rows < PAIRED { vec![] } else { vec![Bond::Elements { rows, width: *width, of }] }
        }
        _ => vec![],
    }
}

/// Whether a map adds a line to a product that it alone reads, and does nothing else: a library
/// does that as it writes the product.
fn ends_a_product(lowered: &LoweredGraph<'_>, map: &Map, fused: &Fused) -> bool {
    let is_product = |value: ValueId| {
        let is_read_once = lowered.readers[value.index()].len() == 1 && !is_root(lowered, value);
        is_read_once && lowered.graph.def(value).op.is_product()
    };
    let adds = match map.program.code[..] {
        [Instr::Binary(Binary::Add, ..)] | [Instr::Binary(Binary::Add, ..), Instr::Round(..)] => map.inputs.len() == 2,
        _ => false,
    };
    adds && whole(map, fused).filter(|value| is_product(*value)).count() == 1 && whole(map, fused).count() == 1
}

/// What a map is whatever its sizes are, where it goes through tensors from end to end.
fn of_any_size(map: &Map) -> Option<Map> {
    let is_number = map.shape.iter().product::<u64>() < 2;
    (!is_number).then(|| map.flat()).flatten().map(|flat| Map { shape: vec![], ..flat })
}

/// The values that a map reads element by element.
fn whole<'a>(map: &'a Map, fused: &'a Fused) -> impl Iterator<Item = ValueId> + 'a {
    let strides = row_major(&map.shape);
    let steps = move |own: &[i64]| map.shape.iter().zip(&strides).zip(own).all(|((size, all), own)| *size == 1 || all == own);
    map.inputs.iter().zip(&fused.reads).filter(move |(input, _)| steps(&input.strides)).map(|(_, value)| *value)
}

fn reads_whole(fused: &Fused, bond: &Bond) -> bool {
    match (bond, &fused.kernel) {
        (
            Bond::Rows { of, rows, width } | Bond::Elements { of, rows, width },
            Kernel::Map(map) | Kernel::Reduce(Reduce { map, .. }),
        ) => map.shape.iter().product::<u64>() == rows * width && whole(map, fused).any(|value| value == *of),
        _ => true,
    }
}

/// Whether a kernel goes with others of that bond; `reads` says whether it reads a member's result.
fn joins(fused: &Fused, bond: &Bond, reads: bool) -> bool {
    match (bond, &fused.kernel) {
        (Bond::Rows { rows, width, .. }, Kernel::Reduce(reduce)) => {
            let kept = reduce.map.shape.iter().zip(&reduce.reduced).filter(|(_, reduced)| !**reduced);
            let all: u64 = reduce.map.shape.iter().product();
            kept.map(|(size, _)| size).product::<u64>() == *rows && all == rows * width && reads_whole(fused, bond)
        }
        (Bond::Rows { rows, .. }, Kernel::Map(map)) => {
            let is_of_rows = map.shape.iter().product::<u64>() == *rows;
            map.origins.is_empty() && reads && is_of_rows || reads && reads_whole(fused, bond)
        }
        (Bond::Elements { .. }, Kernel::Map(_)) => reads && reads_whole(fused, bond),
        (Bond::Updates(own), Kernel::Map(map)) => !reads && of_any_size(map).is_some_and(|any| any == **own),
        _ => false,
    }
}

/// The nodes of other kernels that the kernel of a node reads from.
fn sources(lowered: &LoweredGraph<'_>, fusion: &Fusion, id: NodeId) -> Vec<NodeId> {
    let mut found = vec![];
    let mut seen: HashSet<NodeId> = HashSet::new();
    let mut left = vec![id];
    while let Some(next) = left.pop() {
        for operand in &lowered.graph.node(next).operands {
            let source = lowered.graph.value(lowered.stored_in(*operand)).node;
            if seen.insert(source) {
                if fusion.is_inlined(source) { left.push(source) } else { found.push(source) }
            }
        }
    }
    found
}

/// The units in an order in which each comes behind those that it reads from, else in that of the
/// nodes; `None` if bundles wait for one another.
fn ordered(lowered: &LoweredGraph<'_>, fusion: &Fusion, nodes: &[NodeId], bundles: Vec<Bundled>) -> Option<Vec<Unit>> {
    let place: HashMap<NodeId, usize> = nodes.iter().enumerate().map(|(at, id)| (*id, at)).collect();
    // A unit is known by the place of its last node.
    let mut unit: Vec<usize> = (0..nodes.len()).collect();
    let mut units: Vec<Option<Unit>> = nodes.iter().map(|id| Some(Unit::Node(*id))).collect();
    for bundled in bundles {
        let ends: Vec<usize> = bundled.nodes.iter().filter_map(|nodes| nodes.last()).map(|end| place[end]).collect();
        let last = ends.iter().copied().max()?;
        ends.iter().for_each(|end| (unit[*end], units[*end]) = (last, None));
        units[last] = Some(Unit::Bundle(bundled));
    }
    let mut waits: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![vec![]; nodes.len()];
    for (at, id) in nodes.iter().enumerate().filter(|(_, id)| !fusion.is_inlined(**id)) {
        let before = sources(lowered, fusion, *id).into_iter().filter_map(|source| place.get(&source)).map(|at| unit[*at]);
        for before in before.filter(|before| *before != unit[at]) {
            if waits[unit[at]].insert(before) {
                readers[before].push(unit[at]);
            }
        }
    }
    let mut ready: BTreeSet<usize> = (0..nodes.len()).filter(|at| units[*at].is_some() && waits[*at].is_empty()).collect();
    let mut sorted = vec![];
    while let Some(next) = ready.pop_first() {
        sorted.extend(units[next].take());
        for reader in &readers[next] {
            waits[*reader].remove(&next);
            if waits[*reader].is_empty() {
                ready.insert(*reader);
            }
        }
    }
    units.iter().all(Option::is_none).then_some(sorted)
}
