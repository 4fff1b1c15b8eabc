//! Which elements a product's packed lines hold: for each tap, what 16 neighbouring results see.

use crate::cpu::conv::Sizes;
use crate::cpu::lines::{LINE, MOST_STEP, Piece, WIDTH};
use crate::cpu::window::Window;
use shardc_ir::kernel::ConvResult;
use std::collections::BTreeMap;

/// At least as many results stand side by side in one table.
const COLUMNS: usize = 96;

/// Results of a range of a wide plane: two panels.
const RANGE: usize = 2 * WIDTH * LINE;

/// Results at taps, inputs of different residues, and pieces: of more, tables are too large.
const MOST_ENTRIES: usize = 1 << 22;
const MOST_RESIDUES: usize = 1 << 10;
const MOST_PIECES: usize = 1 << 20;

/// Results that see the same taps, in tables for some samples.
#[derive(Debug)]
pub struct Phase {
    /// The taps.
    pub taps: Vec<usize>,
    /// Results of one sample.
    pub positions: usize,
    pub panels: Vec<Panel>,
}

/// Some neighbouring lines of results.
#[derive(Debug)]
pub struct Panel {
    /// The range of results that it is part of, and its first result.
    pub range: usize,
    pub column: usize,
    /// How many lines.
    pub width: usize,
    /// What they see, the lines of one tap after those of another.
    pub sources: Vec<Piece>,
    /// Where they belong, each with its sample.
    pub targets: Vec<(usize, Piece)>,
}

/// The phases of a convolution's outputs or inputs, in tables of one number of samples.
#[derive(Debug)]
pub struct Phases {
    pub phases: Vec<Phase>,
    /// Samples of a table.
    pub images: usize,
    /// Results of a range: if there are several, each has so many neighbours of one plane.
    pub range: usize,
    /// The distance of neighbouring lanes in what is seen, and in what is made.
    pub source_step: usize,
    pub target_step: usize,
}

impl Phases {
    /// The phases of a convolution; `None` where tables would be too large.
    pub fn new(sizes: &Sizes, window: &Window) -> Option<Phases> {
        let (results, stride, source_step, target_step) = match sizes.result {
            ConvResult::Output => (sizes.output, sizes.x_image(), window.step(), 1),
            _ => (sizes.input, sizes.y_image(), 1, window.step()),
        };
        let entries = COLUMNS.max(results).saturating_mul(sizes.taps);
        let far = sizes.batch.saturating_mul(stride).max(results).saturating_add(LINE * source_step.max(target_step));
        let residues = if sizes.result == ConvResult::Output { 1 } else { window.residues() };
        let fits = entries <= MOST_ENTRIES && sizes.taps * WIDTH <= usize::from(u16::MAX) && residues <= MOST_RESIDUES;
        if !fits || far > i32::MAX as usize / 2 || source_step.max(target_step) > MOST_STEP {
            return None;
        }
        let images = images(results, sizes.batch);
        let mut phases = BTreeMap::<_, Vec<usize>>::new();
        for position in 0..results {
            let phase = if sizes.result == ConvResult::Output { [0; 3] } else { window.residue(position) };
            phases.entry(phase).or_default().push(position);
        }
        let is_whole = images == 1 && phases.len() == 1;
        let range = if is_whole { RANGE.min(results) } else { images * results };
        let source = |position, tap| match sizes.result {
            ConvResult::Output => window.source(position, tap),
            _ => window.target(position, tap),
        };
        let phase = |positions: Vec<usize>| {
            let taps = (0..sizes.taps).filter(|tap| positions.iter().any(|p| source(*p, *tap).is_some())).collect::<Vec<_>>();
            let columns = images * positions.len();
            let at = |column: usize| (column < columns).then(|| (column / positions.len(), positions[column % positions.len()]));
            let sees = |column: usize, tap: usize| {
                let (image, position) = at(column)?;
                source(position, tap).map(|source| image * stride + source)
            };
            let panel = |(first, width): (usize, usize)| {
                let column = first * LINE;
                let range = column / range.max(1);
                let line =
                    |line: usize, tap: usize| pieces(line % width, source_step, |lane| sees(column + line * LINE + lane, tap));
                let sources = taps.iter().enumerate().flat_map(|(i, tap)| (0..width).map(move |v| (i * width + v, v, *tap)));
                let sources = sources.flat_map(|(number, v, tap)| {
                    line(v, tap).into_iter().map(move |piece| Piece { line: number as u16, ..piece })
                });
                let targets = (0..width).flat_map(|v| {
                    (0..images).flat_map(move |image| {
                        let target = |lane| at(column + v * LINE + lane).filter(|at| at.0 == image).map(|at| at.1);
                        pieces(v, target_step, target).into_iter().filter(|p| p.mask != 0).map(move |piece| (image, piece))
                    })
                });
                Panel { range, column, width, sources: sources.collect(), targets: targets.collect() }
            };
            let lines = if taps.is_empty() { 0 } else { columns.div_ceil(LINE) };
            let ranges = (0..lines).step_by(range.div_ceil(LINE)).map(|first| (first, (lines - first).min(range.div_ceil(LINE))));
            let panels = ranges.flat_map(|(start, lines)| widths(lines).map(move |(first, width)| (start + first, width)));
            let panels = panels.map(panel).collect();
            Phase { positions: positions.len(), panels, taps }
        };
        let phases: Vec<Phase> = phases.into_values().map(phase).collect();
        let pieces: usize = phases.iter().flat_map(|phase| &phase.panels).map(|panel| panel.sources.len()).sum();
        (pieces <= MOST_PIECES).then_some(Phases { phases, images, range, source_step, target_step })
    }
}

/// How many samples stand side by side: the fewest that leave less than one lane of 16 empty.
fn images(results: usize, batch: usize) -> usize {
    let fits = |images: &usize| {
        let columns = images * results;
        columns >= COLUMNS && columns.next_multiple_of(LINE) - columns <= columns / LINE
    };
    (1..=batch).find(fits).unwrap_or(batch)
}

/// Cuts lines into panels of about equal width: the first line and the width of each.
pub fn widths(lines: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = lines.div_ceil(WIDTH);
    (0..count).map(move |i| (i * lines / count, (i + 1) * lines / count - i * lines / count))
}

/// The pieces of a line whose lanes are those elements; one without elements if there is none.
fn pieces(line: usize, step: usize, element: impl Fn(usize) -> Option<usize>) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = vec![];
    for lane in 0..LINE {
        let Some(element) = element(lane) else { continue };
        let offset = element as i32 - (lane * step) as i32;
        match pieces.iter_mut().find(|piece| piece.offset == offset) {
            Some(piece) => piece.mask |= 1 << lane,
            None => pieces.push(Piece { offset, mask: 1 << lane, line: line as u16, begins: pieces.is_empty() }),
        }
    }
    if pieces.is_empty() {
        pieces.push(Piece { offset: 0, mask: 0, line: line as u16, begins: true });
    }
    pieces
}
