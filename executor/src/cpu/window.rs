//! Windows that move over up to three spatial dimensions, and the two ways in which kernels walk
//! them.
//!
//! A [`Table`] lists, for each tap, which runs of the input its outputs see. A [`Spread`] copies a
//! plane with its pads, cut by the residues of its positions modulo the stride, so that what a tap
//! sees is one contiguous run for all outputs together.

#[cfg(target_arch = "x86_64")]
mod padded;
mod seen;

#[cfg(target_arch = "x86_64")]
pub use padded::Padded;

use crate::cpu::number::Number;
use shardc_ir::kernel::WindowDim;
use shardc_ir::kernel::window::{MAX_DIMS, planes};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::ops::Range;

/// One spatial dimension; see [`WindowDim`].
#[derive(Debug, Clone, Copy)]
struct Axis {
    input: usize,
    output: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pad: isize,
}

impl Axis {
    const UNIT: Axis = Axis { input: 1, output: 1, kernel: 1, stride: 1, dilation: 1, pad: 0 };

    /// The position, perhaps outside the input, that output 0 sees at `tap`.
    fn offset(&self, tap: usize) -> isize {
        (tap * self.dilation) as isize - self.pad
    }

    /// The input that output `position` sees at `tap`.
    fn source(&self, position: usize, tap: usize) -> Option<usize> {
        (position * self.stride).checked_add_signed(self.offset(tap)).filter(|at| *at < self.input)
    }

    /// The outputs that see an input at `tap`.
    fn inside(&self, tap: usize) -> Range<usize> {
        let (offset, stride) = (self.offset(tap), self.stride);
        let first = offset.min(0).unsigned_abs().div_ceil(stride);
        let end = usize::try_from(self.input as isize - offset).map_or(0, |room| room.div_ceil(stride)).min(self.output);
        first.min(end)..end
    }
}

/// The most rows of outputs, each counted once for each tap.
const MOST_RUNS: usize = 1 << 28;

/// A window over three dimensions; missing outer ones have one position.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    axes: [Axis; MAX_DIMS],
}

impl Window {
    /// The window of a kernel form.
    ///
    /// # Errors
    /// If it is not well formed, or walking it would take forever.
    pub fn new(dims: &[WindowDim]) -> Result<Window, Reason> {
        planes(dims)?;
        let mut axes = [Axis::UNIT; MAX_DIMS];
        for (axis, dim) in axes[MAX_DIMS - dims.len()..].iter_mut().zip(dims) {
            let [input, output, kernel, stride, dilation] =
                [dim.input, dim.output, dim.kernel, dim.stride, dim.dilation].map(|n| n as usize);
            *axis = Axis { input, output, kernel, stride, dilation, pad: dim.pad as isize };
        }
        let window = Window { axes };
        let rows = window.outputs() / window.axes[2].output;
        if window.taps() * rows > MOST_RUNS {
            return Err(reason!("{} taps over {rows} rows of outputs", window.taps()));
        }
        Ok(window)
    }

    /// The window that the inputs see of the outputs, its taps in reverse order, if no output is
    /// left out between two.
    pub fn reversed(&self) -> Option<Window> {
        let turn = |axis: Axis| {
            let pad = ((axis.kernel - 1) * axis.dilation) as isize - axis.pad;
            Axis { input: axis.output, output: axis.input, pad, ..axis }
        };
        self.axes.iter().all(|axis| axis.stride == 1).then(|| Window { axes: self.axes.map(turn) })
    }

    /// Rows and columns of an input plane and of an output plane, and the pads before them, of a
    /// window of 3 x 3 neighbours; `None` if it is another.
    pub fn three_by_three(&self) -> Option<[[usize; 2]; 3]> {
        let [depth, rows, cols] = self.axes;
        let is_flat = depth.input == 1 && depth.output == 1 && depth.kernel == 1 && depth.pad == 0;
        let fits = |axis: Axis| axis.kernel == 3 && axis.stride == 1 && axis.dilation == 1 && (0..3).contains(&axis.pad);
        let both = |of: fn(Axis) -> usize| [rows, cols].map(of);
        let sizes = || [both(|axis| axis.input), both(|axis| axis.output), both(|axis| axis.pad as usize)];
        (is_flat && fits(rows) && fits(cols)).then(sizes)
    }

    /// Elements of an input plane.
    pub fn inputs(&self) -> usize {
        self.axes.iter().map(|a| a.input).product()
    }

    /// Elements of an output plane.
    pub fn outputs(&self) -> usize {
        self.axes.iter().map(|a| a.output).product()
    }

    /// Taps of the window.
    pub fn taps(&self) -> usize {
        self.axes.iter().map(|a| a.kernel).product()
    }

    /// Whether each output sees the input of the same number and nothing else.
    pub fn is_pointwise(&self) -> bool {
        self.axes.iter().all(|a| a.kernel == 1 && a.pad == 0 && a.input == a.output && (a.stride == 1 || a.output == 1))
    }

    /// Every tap as positions along the three dimensions, in row-major order.
    fn each_tap(&self) -> impl Iterator<Item = [usize; 3]> {
        let [d, h, w] = self.axes.map(|a| a.kernel);
        (0..d).flat_map(move |i| (0..h).flat_map(move |j| (0..w).map(move |k| [i, j, k])))
    }
}

/// Outputs that see inputs at a constant distance.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The first output, from the first of the table's.
    pub output: u32,
    /// The input that it sees.
    pub input: u32,
    /// How many.
    pub len: u32,
}

/// For each tap, which of some outputs see an input.
#[derive(Debug)]
pub struct Table {
    runs: Vec<Run>,
    /// For each tap, the end of its runs.
    ends: Vec<usize>,
    /// The distance between neighbours of a run in the input.
    pub step: usize,
}

/// A table whose runs go on from one row to the next where rows of outputs and inputs are equally
/// long. Outputs at the ends of rows then seem to see the input before or after them.
#[derive(Debug)]
pub struct JoinedTable {
    /// The joined runs.
    pub table: Table,
    /// For each tap, the outputs within its runs that see nothing, as first output and number.
    pub holes: Vec<Vec<(u32, u32)>>,
}

impl JoinedTable {
    /// The table of the outputs `positions` of a plane.
    pub fn new(window: &Window, positions: Range<usize>) -> JoinedTable {
        let exact = Table::new(window, positions);
        let width = &window.axes[2];
        let joins = width.stride == 1 && width.input == width.output;
        let mut joined = JoinedTable { table: Table { runs: vec![], ends: vec![], step: exact.step }, holes: vec![] };
        for tap in 0..window.taps() {
            let (from, mut holes) = (joined.table.runs.len(), vec![]);
            for run in exact.tap(tap) {
                let last = joined.table.runs[from..].last_mut();
                let gap = last.filter(|l| joins && run.input.wrapping_sub(l.input) == run.output - l.output);
                match gap {
                    Some(last) => {
                        let end = last.output + last.len;
                        holes.push((end, run.output - end));
                        last.len = run.output + run.len - last.output;
                    }
                    None => joined.table.runs.push(*run),
                }
            }
            joined.table.ends.push(joined.table.runs.len());
            joined.holes.push(holes);
        }
        joined
    }
}

impl Table {
    /// The table of the outputs `positions` of a plane.
    pub fn new(window: &Window, positions: Range<usize>) -> Table {
        let [depth, height, width] = &window.axes;
        let mut table = Table { runs: vec![], ends: vec![], step: width.stride };
        for [d, h, w] in window.each_tap() {
            let (inside, from) = (width.inside(w), table.runs.len());
            for row in positions.start / width.output..positions.end.div_ceil(width.output) {
                let (Some(z), Some(y)) = (depth.source(row / height.output, d), height.source(row % height.output, h)) else {
                    continue;
                };
                let first = inside.start.max(positions.start.saturating_sub(row * width.output));
                let end = inside.end.min(positions.end - row * width.output);
                if let Some(x) = width.source(first, w).filter(|_| first < end) {
                    let output = row * width.output + first - positions.start;
                    table.add(from, output, (z * height.input + y) * width.input + x, end - first);
                }
            }
            table.ends.push(table.runs.len());
        }
        table
    }

    /// Adds a run, to the one before it (of the same tap: from the run `from` on) if it goes on
    /// there.
    fn add(&mut self, from: usize, output: usize, input: usize, len: usize) {
        let run = Run { output: output as u32, input: input as u32, len: len as u32 };
        if let Some(last) = self.runs[from..].last_mut() {
            let goes_on = (last.output + last.len, last.input as usize + last.len as usize * self.step) == (run.output, input);
            if goes_on {
                last.len += run.len;
                return;
            }
        }
        self.runs.push(run);
    }

    /// The runs of a tap, by ascending output.
    pub fn tap(&self, tap: usize) -> &[Run] {
        let start = if tap == 0 { 0 } else { self.ends[tap - 1] };
        &self.runs[start..self.ends[tap]]
    }
}

/// One dimension of a spread.
#[derive(Debug, Clone)]
struct SpreadAxis {
    axis: Axis,
    /// The residues of positions modulo the stride that some tap sees.
    residues: Vec<usize>,
    /// The least quotient of a tap's offset by the stride.
    low: isize,
    /// Positions of each residue.
    extent: usize,
}

impl SpreadAxis {
    fn new(axis: Axis) -> SpreadAxis {
        let split =
            |tap| (axis.offset(tap).rem_euclid(axis.stride as isize) as usize, axis.offset(tap).div_euclid(axis.stride as isize));
        let mut residues: Vec<usize> = (0..axis.kernel).map(|tap| split(tap).0).collect();
        residues.sort();
        residues.dedup();
        let (low, high) = (split(0).1, split(axis.kernel - 1).1);
        SpreadAxis { axis, residues, low, extent: axis.output + (high - low) as usize }
    }

    /// Which residue a tap sees, and from which of its positions on.
    fn tap(&self, tap: usize) -> (usize, usize) {
        let (offset, stride) = (self.axis.offset(tap), self.axis.stride as isize);
        let residue = offset.rem_euclid(stride) as usize;
        let phase = self.residues.iter().position(|r| *r == residue).unwrap_or(0);
        (phase, (offset.div_euclid(stride) - self.low) as usize)
    }

    /// The input at position `at` of residue number `phase`.
    fn source(&self, phase: usize, at: usize) -> Option<usize> {
        let position = (at as isize + self.low) * self.axis.stride as isize + self.residues[phase] as isize;
        usize::try_from(position).ok().filter(|p| *p < self.axis.input)
    }

    /// The positions of residue number `phase` that are inputs.
    fn inside(&self, phase: usize) -> Range<usize> {
        let stride = self.axis.stride as isize;
        let first = -(self.low * stride + self.residues[phase] as isize);
        let end = first + self.axis.input as isize;
        let up = |n: isize| (n.max(0) as usize).div_ceil(self.axis.stride).min(self.extent);
        up(first)..up(end).max(up(first))
    }
}

/// Lanes in which inner loops run, over planes of many outputs and of few.
pub const LANES: usize = 64;
pub const FEW_LANES: usize = 16;

/// How a plane is laid out with its pads so that each tap sees one contiguous run.
#[derive(Debug, Clone)]
pub struct Spread {
    axes: [SpreadAxis; 3],
    /// For each tap, where what output 0 sees is.
    pub bases: Vec<usize>,
    /// Elements of a spread plane, with room for whole lanes behind it.
    pub len: usize,
    /// Outputs in the spread's order: rows have the spread's pitch, and there are whole lanes.
    pub outputs: usize,
    /// Lanes in which inner loops run: [`LANES`] or [`FEW_LANES`].
    pub lanes: usize,
    short: Option<Short>,
}

/// Where each element goes, for planes whose rows are too short to be copied one by one.
#[derive(Debug, Clone, Default)]
struct Short {
    /// For each element of the spread plane, the input that it is; beyond the inputs if it is none.
    inputs: Vec<u32>,
    /// For each output, where it is in the spread's order.
    outputs: Vec<u32>,
}

impl Spread {
    /// The layout for a window; `None` where it would be much larger than the planes.
    pub fn new(window: &Window) -> Option<Spread> {
        let axes = window.axes.map(SpreadAxis::new);
        let [d, h, w] = &axes;
        let room = 8 * (window.inputs() + window.outputs()) + 4096;
        let sizes = axes.iter().flat_map(|a| [a.extent, a.residues.len()]);
        let size = sizes.fold(1usize, |n, size| n.saturating_mul(size));
        if size > room {
            return None;
        }
        let phase = d.extent * h.extent * w.extent;
        let base = |[i, j, k]: [usize; 3]| {
            let ((pd, sd), (ph, sh), (pw, sw)) = (d.tap(i), h.tap(j), w.tap(k));
            ((pd * h.residues.len() + ph) * w.residues.len() + pw) * phase + (sd * h.extent + sh) * w.extent + sw
        };
        let bases = window.each_tap().map(base).collect();
        let last = ((d.axis.output - 1) * h.extent + h.axis.output - 1) * w.extent + w.axis.output;
        let lanes = if last <= LANES / 2 { FEW_LANES } else { LANES };
        let (len, outputs) = (size + lanes, last.next_multiple_of(lanes));
        let mut spread = Spread { bases, len, outputs, lanes, axes: axes.clone(), short: None };
        spread.short = spread.short(window);
        Some(spread)
    }

    fn short(&self, window: &Window) -> Option<Short> {
        const ROW: usize = 8;
        const PLANE: usize = 1024;
        if self.axes[2].axis.input.max(self.axes[2].axis.output) > ROW || self.len > PLANE {
            return None;
        }
        let mut short = Short { inputs: vec![u32::MAX; self.len], outputs: vec![0; window.outputs()] };
        let step = self.axes[2].axis.stride;
        self.each_row(|row, inside, source| {
            let row = &mut short.inputs[row];
            source.into_iter().for_each(|source| {
                row[inside.clone()].iter_mut().enumerate().for_each(|(i, input)| *input = (source + i * step) as u32);
            });
        });
        self.each_output_row(|dense, pitched| {
            short.outputs[dense].iter_mut().zip(pitched).for_each(|(at, pitched)| *at = pitched as u32);
        });
        Some(short)
    }

    /// Lays a plane out; `empty` fills what is not there.
    #[inline(always)]
    pub fn lay<T: Number>(&self, plane: &[T], empty: T, out: &mut [T]) {
        if let Some(short) = &self.short {
            for (to, input) in out[..self.len].iter_mut().zip(&short.inputs) {
                *to = plane.get(*input as usize).copied().unwrap_or(empty);
            }
            return;
        }
        let step = self.axes[2].axis.stride;
        self.each_row(|row, inside, source| {
            let row = &mut out[row];
            let Some(source) = source else { return row.fill(empty) };
            row[..inside.start].fill(empty);
            row[inside.end..].fill(empty);
            let into = &mut row[inside];
            if step == 1 {
                into.copy_from_slice(&plane[source..][..into.len()]);
            } else {
                into.iter_mut().zip(plane[source..].iter().step_by(step)).for_each(|(to, from)| *to = *from);
            }
        });
        let end = self.len - self.lanes;
        out[end..].fill(empty);
    }

    /// The inverse of [`Spread::lay`]; inputs that no tap sees become 0.
    #[inline(always)]
    pub fn gather<T: Number>(&self, spread: &[T], plane: &mut [T]) {
        let step = self.axes[2].axis.stride;
        plane.fill(T::ZERO);
        if let Some(short) = &self.short {
            for (from, input) in spread.iter().zip(&short.inputs) {
                plane.get_mut(*input as usize).into_iter().for_each(|to| *to = *from);
            }
            return;
        }
        self.each_row(|row, inside, source| {
            let Some(source) = source else { return };
            let from = &spread[row][inside];
            if step == 1 {
                plane[source..][..from.len()].copy_from_slice(from);
            } else {
                plane[source..].iter_mut().step_by(step).zip(from).for_each(|(to, from)| *to = *from);
            }
        });
    }

    /// Calls `f` with each row of the spread, the part of it that holds inputs, and the first of
    /// them (none if there is no part).
    #[inline(always)]
    fn each_row(&self, mut f: impl FnMut(Range<usize>, Range<usize>, Option<usize>)) {
        let [d, h, w] = &self.axes;
        let mut start = 0;
        for pd in 0..d.residues.len() {
            for ph in 0..h.residues.len() {
                for pw in 0..w.residues.len() {
                    let inside = w.inside(pw);
                    let x = w.source(pw, inside.start).filter(|_| !inside.is_empty());
                    for z in 0..d.extent {
                        let z = d.source(pd, z);
                        for y in 0..h.extent {
                            let y = h.source(ph, y);
                            let source = z.zip(y).zip(x).map(|((z, y), x)| (z * h.axis.input + y) * w.axis.input + x);
                            f(start..start + w.extent, inside.clone(), source);
                            start += w.extent;
                        }
                    }
                }
            }
        }
    }

    /// Copies a plane of outputs into the spread's order; 0 fills the rest.
    #[inline(always)]
    pub fn pitch<T: Number>(&self, plane: &[T], out: &mut [T]) {
        out[..self.outputs].fill(T::ZERO);
        if let Some(short) = &self.short {
            return short.outputs.iter().zip(plane).for_each(|(at, from)| out[*at as usize] = *from);
        }
        self.each_output_row(|dense, pitched| out[pitched].copy_from_slice(&plane[dense]));
    }

    /// Copies outputs in the spread's order into a plane.
    #[inline(always)]
    pub fn unpitch<T: Number>(&self, pitched: &[T], plane: &mut [T]) {
        if let Some(short) = &self.short {
            return plane.iter_mut().zip(&short.outputs).for_each(|(to, at)| *to = pitched[*at as usize]);
        }
        self.each_output_row(|dense, from| plane[dense].copy_from_slice(&pitched[from]));
    }

    /// Calls `f` with where each row of outputs is in a plane and in the spread's order.
    #[inline(always)]
    fn each_output_row(&self, mut f: impl FnMut(Range<usize>, Range<usize>)) {
        let [d, h, w] = &self.axes;
        let width = w.axis.output;
        for z in 0..d.axis.output {
            for y in 0..h.axis.output {
                let (dense, pitched) = ((z * h.axis.output + y) * width, (z * h.extent + y) * w.extent);
                f(dense..dense + width, pitched..pitched + width);
            }
        }
    }
}
