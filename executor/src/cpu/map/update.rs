//! Updates of parameters in one pass: programs of Adam and of SGD with a moment, known by what they
//! compute.
//!
//! Block by block an update would wait for one tensor after another. A loop that goes through all
//! of them side by side keeps its numbers in registers, and is a pattern that the processor
//! fetches ahead of. The operations and their order are those of the program, and so are the bits,
//! but for which not-a-number it is.

use crate::cpu::map::program::{Leaf, Op, Source, Storage};
use crate::cpu::number::Number;
use crate::cpu::simd::simd;
use shardc_ir::scalar::{Binary, Unary};
use std::collections::HashMap;

/// An update. A number that all elements share is known by its place among those of the program.
#[derive(Debug)]
pub struct Update {
    /// The leaves of the parameter and its moments, in the order of the results.
    pub states: Vec<usize>,
    /// The leaf of the gradient.
    pub gradient: usize,
    /// What the gradient is multiplied by first.
    scale: Option<usize>,
    /// What of the parameter is added to the gradient.
    decay: Option<usize>,
    rule: Rule,
}

#[derive(Debug)]
enum Rule {
    /// `m = m * momentum + g; w -= lr * (m, or g + m * ahead)`
    Momentum { momentum: usize, ahead: Option<usize>, lr: usize },
    /// `m = m * beta1 + g * rest1; v = v * beta2 + g * g * rest2;
    /// w = w * keep - lr * (m / first / (sqrt(v / second) + eps))`, with the numbers
    /// `beta1, rest1, beta2, rest2, first, second, eps, lr`
    Adam { keep: Option<usize>, numbers: [usize; 8] },
}

/// The instructions that vary from element to element.
pub(super) struct Code<'a> {
    /// By the register that each defines.
    pub defined: HashMap<usize, Op<usize>>,
    pub places: &'a [Option<Storage>],
    pub leaves: &'a [Leaf],
    /// The leaves that have the compute type and all elements in order, by their registers.
    pub streams: &'a HashMap<usize, usize>,
}

impl Code<'_> {
    /// The update that computes these results, if it is one.
    pub fn update(&self, results: &[usize]) -> Option<Update> {
        let update = match *results {
            [w, m] => self.momentum(w, m),
            [w, m, v] => self.adam(w, m, v),
            _ => None,
        };
        update.filter(|update| update.fits(self.leaves))
    }

    fn momentum(&self, w: usize, m: usize) -> Option<Update> {
        let (old_w, step) = self.binary(Binary::Sub, w)?;
        let (direction, lr) = self.scaled(step)?;
        let (kept, gradient) = self.binary(Binary::Add, m)?;
        let (old_m, momentum) = self.scaled(kept)?;
        let ahead = match self.binary(Binary::Add, direction) {
            _ if direction == m => None,
            Some((same, more)) if same == gradient => Some(self.scaled(more).filter(|(of, _)| *of == m)?.1),
            _ => return None,
        };
        self.by_leaves(gradient, &[old_w, old_m], Rule::Momentum { momentum, ahead, lr })
    }

    fn adam(&self, w: usize, m: usize, v: usize) -> Option<Update> {
        let (kept_w, step) = self.binary(Binary::Sub, w)?;
        let (old_w, keep) = self.scaled(kept_w).map_or((kept_w, None), |(old, keep)| (old, Some(keep)));
        let (direction, lr) = self.scaled(step)?;
        let (numerator, denominator) = self.binary(Binary::Div, direction)?;
        let first = self.divided(numerator, m)?;
        let (root, eps) = self.with_number(Binary::Add, denominator)?;
        let Op::Unary(Unary::Sqrt, square) = *self.defined.get(&root)? else { return None };
        let second = self.divided(square, v)?;
        let (kept_m, new_m) = self.binary(Binary::Add, m)?;
        let ((old_m, beta1), (gradient, rest1)) = (self.scaled(kept_m)?, self.scaled(new_m)?);
        let (kept_v, new_v) = self.binary(Binary::Add, v)?;
        let ((old_v, beta2), (product, rest2)) = (self.scaled(kept_v)?, self.scaled(new_v)?);
        let is_square = self.binary(Binary::Mul, product)? == (gradient, gradient);
        let numbers = [beta1, rest1, beta2, rest2, first, second, eps, lr];
        self.by_leaves(gradient, &[old_w, old_m, old_v], Rule::Adam { keep, numbers }).filter(|_| is_square)
    }

    /// The update by that gradient, which may be made of a leaf and of the parameter.
    fn by_leaves(&self, gradient: usize, states: &[usize], rule: Rule) -> Option<Update> {
        let decayed = || {
            let (gradient, more) = self.binary(Binary::Add, gradient)?;
            let (of, decay) = self.scaled(more)?;
            (of == states[0]).then_some((gradient, Some(decay)))
        };
        let (gradient, decay) = decayed().unwrap_or((gradient, None));
        let (gradient, scale) = self.scaled(gradient).map_or((gradient, None), |(gradient, scale)| (gradient, Some(scale)));
        let leaf = |register: &usize| self.streams.get(register).copied();
        let states = states.iter().map(leaf).collect::<Option<_>>()?;
        Some(Update { states, gradient: leaf(&gradient)?, scale, decay, rule })
    }

    fn binary(&self, of: Binary, register: usize) -> Option<(usize, usize)> {
        match *self.defined.get(&register)? {
            Op::Binary(f, a, b) if f == of => Some((a, b)),
            _ => None,
        }
    }

    /// What varies, and the number beside it, of an operation that does not mind their order.
    fn with_number(&self, of: Binary, register: usize) -> Option<(usize, usize)> {
        let (a, b) = self.binary(of, register)?;
        match (self.number(a), self.number(b)) {
            (None, Some(number)) => Some((a, number)),
            (Some(number), None) => Some((b, number)),
            _ => None,
        }
    }

    fn scaled(&self, register: usize) -> Option<(usize, usize)> {
        self.with_number(Binary::Mul, register)
    }

    /// The number that `of` is divided by.
    fn divided(&self, register: usize, of: usize) -> Option<usize> {
        let (a, b) = self.binary(Binary::Div, register)?;
        self.number(b).filter(|_| a == of)
    }

    fn number(&self, register: usize) -> Option<usize> {
        match self.places[register] {
            Some(Storage::Uniform(number)) => Some(number),
            _ => None,
        }
    }
}

impl Update {
    /// Whether each state is in place or apart, and the gradient apart.
    fn fits(&self, leaves: &[Leaf]) -> bool {
        let is_own = |(state, leaf): (usize, &usize)| match leaves[*leaf].source {
            Source::InPlace(output) => output == state,
            Source::Operand(_) => true,
            Source::Index(_) => false,
        };
        matches!(leaves[self.gradient].source, Source::Operand(_)) && self.states.iter().enumerate().all(is_own)
    }

    /// Updates a piece of a parameter and of its moments by that of its gradient.
    pub fn run<T: Number>(&self, numbers: &[T], gradient: &[T], states: &mut [&mut [T]]) {
        let at = |place: usize| numbers[place];
        match (self.scale.map(at), self.decay.map(at)) {
            (None, None) => self.ruled(numbers, |g, _| g, gradient, states),
            (Some(scale), None) => self.ruled(numbers, |g: T, _| g.mul(scale), gradient, states),
            (None, Some(decay)) => self.ruled(numbers, |g: T, w: T| g.add(w.mul(decay)), gradient, states),
            (Some(scale), Some(decay)) => self.ruled(numbers, |g: T, w: T| g.mul(scale).add(w.mul(decay)), gradient, states),
        }
    }

    fn ruled<T: Number, G: Fn(T, T) -> T>(&self, numbers: &[T], made: G, gradient: &[T], states: &mut [&mut [T]]) {
        let at = |place: usize| numbers[place];
        match (&self.rule, states) {
            (Rule::Momentum { momentum, ahead: None, lr }, [w, m]) => {
                by_momentum(made, |_, m| m, at(*momentum), at(*lr), gradient, w, m);
            }
            (Rule::Momentum { momentum, ahead: Some(ahead), lr }, [w, m]) => {
                let ahead = at(*ahead);
                by_momentum(made, |g: T, m: T| g.add(m.mul(ahead)), at(*momentum), at(*lr), gradient, w, m);
            }
            (Rule::Adam { keep, numbers: places }, [w, m, v]) => {
                let own = places.map(at);
                match keep.map(at) {
                    None => by_adam(made, |w| w, own, gradient, w, m, v),
                    Some(keep) => by_adam(made, |w: T| w.mul(keep), own, gradient, w, m, v),
                }
            }
            (rule, states) => unreachable!("{} states of {rule:?}", states.len()),
        }
    }
}

simd! {
    fn by_momentum<T: Number, G: Fn(T, T) -> T, D: Fn(T, T) -> T>(
        made: G, direction: D, momentum: T, lr: T, g: &[T], w: &mut [T], m: &mut [T],
    ) {
        for ((g, w), m) in g.iter().zip(w).zip(m) {
            let g = made(*g, *w);
            *m = m.mul(momentum).add(g);
            *w = w.sub(lr.mul(direction(g, *m)));
        }
    }

    fn by_adam<T: Number, G: Fn(T, T) -> T, K: Fn(T) -> T>(
        made: G, kept: K, numbers: [T; 8], g: &[T], w: &mut [T], m: &mut [T], v: &mut [T],
    ) {
        let [beta1, rest1, beta2, rest2, first, second, eps, lr] = numbers;
        for (((g, w), m), v) in g.iter().zip(w).zip(m).zip(v) {
            let g = made(*g, *w);
            *m = m.mul(beta1).add(g.mul(rest1));
            *v = v.mul(beta2).add(g.mul(g).mul(rest2));
            let direction = m.div(first).div(v.div(second).sqrt().add(eps));
            *w = kept(*w).sub(lr.mul(direction));
        }
    }
}
