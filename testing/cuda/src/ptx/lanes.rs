//! The registers of a warp, and steps that compute on all its lanes at once.

use super::kinds::Lane;

/// The threads of a warp.
pub(super) const WARP: usize = 32;

/// One register of each lane.
pub(super) type Lanes = [u64; WARP];

/// The registers of a warp. A number of less than 64 bits has zeros above it, except in constants.
#[derive(Debug, Clone)]
pub(super) struct Registers {
    pub(super) lanes: Vec<Lanes>,
    /// One bit a lane.
    pub(super) predicates: Vec<u32>,
}

impl Registers {
    pub(super) fn put(&mut self, to: usize, mask: u32, values: &Lanes) {
        let to = &mut self.lanes[to];
        if mask == !0 {
            *to = *values;
        } else {
            for (l, (to, from)) in to.iter_mut().zip(values).enumerate() {
                if mask >> l & 1 == 1 {
                    *to = *from;
                }
            }
        }
    }

    pub(super) fn put_predicate(&mut self, to: usize, mask: u32, values: u32) {
        self.predicates[to] = self.predicates[to] & !mask | values & mask;
    }

    pub(super) fn holds(&self, p: Guard) -> u32 {
        let x = self.predicates[p.predicate];
        if p.negated { !x } else { x }
    }
}

/// A predicate as an operand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guard {
    pub(super) predicate: usize,
    pub(super) negated: bool,
}

/// What an instruction computes in the lanes of a mask.
pub(super) type Step = Box<dyn Fn(&mut Registers, u32) + Send + Sync>;

/// The numbers of the lanes of a mask.
pub(super) fn lanes_of(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < 32).then_some(lane as usize)
    })
}

pub(super) fn one<A: Lane, R: Lane>([d, a]: [usize; 2], f: impl Fn(A) -> R + Send + Sync + 'static) -> Step {
    Box::new(move |r, mask| {
        let a = &r.lanes[a];
        let v = std::array::from_fn(|l| f(A::of(a[l])).bits());
        r.put(d, mask, &v);
    })
}

pub(super) fn two<A: Lane, B: Lane, R: Lane>([d, a, b]: [usize; 3], f: impl Fn(A, B) -> R + Send + Sync + 'static) -> Step {
    Box::new(move |r, mask| {
        let (a, b) = (&r.lanes[a], &r.lanes[b]);
        let v = std::array::from_fn(|l| f(A::of(a[l]), B::of(b[l])).bits());
        r.put(d, mask, &v);
    })
}

pub(super) fn three<A: Lane, B: Lane, C: Lane, R: Lane>(
    [d, a, b, c]: [usize; 4],
    f: impl Fn(A, B, C) -> R + Send + Sync + 'static,
) -> Step {
    Box::new(move |r, mask| {
        let (a, b, c) = (&r.lanes[a], &r.lanes[b], &r.lanes[c]);
        let v = std::array::from_fn(|l| f(A::of(a[l]), B::of(b[l]), C::of(c[l])).bits());
        r.put(d, mask, &v);
    })
}

pub(super) fn four<T: Lane>([d, a, b, c, e]: [usize; 5], f: impl Fn(T, T, u32, u32) -> T + Send + Sync + 'static) -> Step {
    Box::new(move |r, mask| {
        let (a, b, c, e) = (&r.lanes[a], &r.lanes[b], &r.lanes[c], &r.lanes[e]);
        let v = std::array::from_fn(|l| f(T::of(a[l]), T::of(b[l]), c[l] as u32, e[l] as u32).bits());
        r.put(d, mask, &v);
    })
}

/// Bit `l` of the result says whether `f` holds in lane `l`.
pub(super) fn test<A: Lane>(a: &Lanes, b: &Lanes, f: impl Fn(A, A) -> bool) -> u32 {
    let mut bits = 0;
    for (l, (a, b)) in a.iter().zip(b).enumerate() {
        bits |= u32::from(f(A::of(*a), A::of(*b))) << l;
    }
    bits
}
