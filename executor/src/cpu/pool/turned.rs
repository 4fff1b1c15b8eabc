//! Pools over 16 planes side by side.

use crate::cpu::number::Number;
use crate::cpu::scratch;
use crate::cpu::simd::simd;
use crate::cpu::turned::{LINE, turn, turn_back};
use crate::cpu::window::Window;

/// The most elements of a plane: the lines of more leave the second cache.
const MOST_ELEMENTS: usize = 1 << 12;

/// The most taps of all outputs together: of more, the table takes long to read.
const MOST_TAPS: usize = 1 << 15;

/// Which inputs each output sees.
#[derive(Debug)]
pub struct Turned {
    /// For each output, one behind its last input.
    ends: Vec<u32>,
    /// The inputs of each output, in the order of its taps.
    inputs: Vec<u16>,
    /// Elements of an input plane.
    input: usize,
}

impl Turned {
    /// The table of a window over so many planes, if it is a good way to walk it.
    pub fn new(window: &Window, planes: usize) -> Option<Turned> {
        let (input, outputs) = (window.inputs(), window.outputs());
        let is_small = input.max(outputs) <= MOST_ELEMENTS && outputs.saturating_mul(window.taps()) <= MOST_TAPS;
        if planes < LINE / 2 || !is_small {
            return None;
        }
        let (mut ends, mut inputs) = (vec![], vec![]);
        for output in 0..outputs {
            inputs.extend((0..window.taps()).filter_map(|tap| window.source(output, tap)).map(|input| input as u16));
            ends.push(inputs.len() as u32);
        }
        Some(Turned { ends, inputs, input })
    }

    /// `y` becomes the largest that the outputs of some planes see.
    pub fn largest<T: Number>(&self, x: &[T], y: &mut [T]) {
        let (of_x, of_y) = (x.chunks(LINE * self.input), y.chunks_mut(LINE * self.ends.len()));
        scratch::with((self.input + self.ends.len()) * LINE, |memory: &mut [T]| {
            let (lines, made) = memory.as_chunks_mut().0.split_at_mut(self.input);
            for (x, y) in of_x.zip(of_y) {
                turn(x, lines);
                largest(self, lines, made);
                turn_back(made, y);
            }
        });
    }

    /// `dx` becomes the gradient of some planes.
    pub fn gradient<T: Number>(&self, x: &[T], dy: &[T], dx: &mut [T]) {
        let outputs = self.ends.len();
        let operands = x.chunks(LINE * self.input).zip(dy.chunks(LINE * outputs));
        scratch::with((2 * self.input + outputs) * LINE, |memory: &mut [T]| {
            let (lines, memory) = memory.as_chunks_mut().0.split_at_mut(self.input);
            let (made, given) = memory.split_at_mut(self.input);
            for ((x, dy), dx) in operands.zip(dx.chunks_mut(LINE * self.input)) {
                turn(x, lines);
                turn(dy, given);
                gradient(self, lines, given, made);
                turn_back(made, dx);
            }
        });
    }

    /// For each output, the inputs that it sees.
    #[inline(always)]
    fn seen(&self) -> impl Iterator<Item = &[u16]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.inputs[start as usize..*end as usize])
    }
}

#[inline(always)]
fn largest_of<T: Number>(lines: &[[T; LINE]], inputs: &[u16]) -> [T; LINE] {
    let mut largest = [T::LOWEST; LINE];
    for input in inputs {
        let x = &lines[*input as usize];
        for i in 0..LINE {
            largest[i] = largest[i].max(x[i]);
        }
    }
    largest
}

simd! {
    fn largest<T: Number>(table: &Turned, lines: &[[T; LINE]], made: &mut [[T; LINE]]) {
        for (made, inputs) in made.iter_mut().zip(table.seen()) {
            *made = largest_of(lines, inputs);
        }
    }

    fn gradient<T: Number>(table: &Turned, lines: &[[T; LINE]], given: &[[T; LINE]], made: &mut [[T; LINE]]) {
        made.fill([T::ZERO; LINE]);
        for (given, inputs) in given.iter().zip(table.seen()) {
            let largest = largest_of(lines, inputs);
            let mut left = *given;
            for input in inputs {
                let (x, made) = (&lines[*input as usize], &mut made[*input as usize]);
                for i in 0..LINE {
                    let hit = (x[i] == largest[i]) | (x[i].is_nan() & largest[i].is_nan());
                    made[i] = made[i].add(if hit { left[i] } else { T::ZERO });
                    left[i] = if hit { T::ZERO } else { left[i] };
                }
            }
        }
    }
}
