//! Kernel forms: the narrow waist between ops and backends.
//!
//! A kernel is data: sizes, strides and small programs. A backend implements these forms and
//! nothing else; the CPU backend is their definition. Sizes and strides count elements; a view (see
//! [`crate::plan::View`]) says where a buffer begins. Unless a form has strides, its operands are
//! contiguous and row-major. Each form is a file, with what loader, proof and backends ask of it
//! ([`Form`]), and a line in the list of [`each_form`](crate::each_form).

mod attention;
mod bundle;
mod collective;
mod contract;
mod conv;
mod fill;
mod form;
mod gather;
mod map;
mod max_pool;
mod random;
mod reduce;
mod rowwise;
pub mod signature;
mod strided_copy;
pub mod window;

pub use attention::{Attention, AttentionGrad, AttentionMask};
pub use bundle::{Bundle, Member, MemberKernel, Source};
pub use collective::{Collective, CollectiveKind, CommunicationKind};
pub use contract::{Contract, ContractDim};
pub use conv::{Conv, ConvResult};
pub use fill::Fill;
pub use form::{Form, Position};
pub use gather::{Gather, ONTO, ScatterAdd};
pub use map::{Map, MapInput};
pub use max_pool::{MaxPool, MaxPoolGrad};
pub use random::Random;
pub use reduce::Reduce;
pub use rowwise::{RowExtent, RowProgram, Rowwise};
pub use strided_copy::Move;
pub use window::WindowDim;

use crate::mesh::Mesh;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};
use signature::Signature;

/// An implementation of the kernels on some kind of device.
pub trait Backend {
    /// A kernel made ready for one arrangement of its operands in memory.
    type Ready;
}

/// How a backend carries out one form. A backend has this for every form.
pub trait Implements<F>: Backend {
    /// Makes a kernel ready whose operands fit its signature. `in_place` says for each read which
    /// write is the same memory.
    ///
    /// # Errors
    /// If the backend cannot carry it out.
    fn ready(&self, form: &F, in_place: &[Option<usize>]) -> Result<Self::Ready, Reason>;
}

/// Hands the list of all forms to a macro: what is made of each form is missed where a new one has
/// none.
#[macro_export]
macro_rules! each_form {
    ($then:ident) => {
        $then! {
            Map,
            Reduce,
            Rowwise,
            Contract,
            Attention,
            AttentionGrad,
            Conv,
            MaxPool,
            MaxPoolGrad,
            Move,
            Gather,
            ScatterAdd,
            Fill,
            Random,
            Collective,
            Bundle
        }
    };
}

/// Makes the enum of the forms, and the ways from a kernel to its form.
macro_rules! forms {
    ($($form:ident),*) => {
        /// One kernel form with its sizes. The order of the forms is that of their numbers in plan
        /// files.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[allow(missing_docs, reason = "each form is documented at its struct")]
        pub enum Kernel {
            $($form($form)),*
        }

        impl Kernel {
            /// Instances of every form, each with what it is, as [`Form::everyday`] gives them.
            pub fn everyday() -> Vec<(String, Kernel)> {
                let mut all = vec![];
                $(all.extend($form::everyday().into_iter().map(|(what, form)| (what, Kernel::$form(form))));)*
                all
            }

            /// The form behind it.
            pub fn form(&self) -> &dyn Form {
                match self {
                    $(Kernel::$form(form) => form),*
                }
            }

            /// The form behind it, to be changed.
            pub fn form_mut(&mut self) -> &mut dyn Form {
                match self {
                    $(Kernel::$form(form) => form),*
                }
            }

            /// The kernel made ready by a backend, as [`Implements::ready`] says.
            ///
            /// # Errors
            /// If the backend cannot carry it out.
            pub fn ready<B>(&self, backend: &B, in_place: &[Option<usize>]) -> Result<B::Ready, Reason>
            where
                B: Backend $(+ Implements<$form>)*,
            {
                match self {
                    $(Kernel::$form(form) => Implements::<$form>::ready(backend, form, in_place)),*
                }
            }
        }
    };
}

each_form!(forms);

/// The work of a kernel, or of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Operations on numbers.
    pub flops: u64,
    /// Bytes of the operands read.
    pub read: u64,
    /// Bytes of the operands written.
    pub written: u64,
}

impl Work {
    /// That of each of so many that share it out.
    pub fn shared_by(self, many: u64) -> Work {
        let of = |amount: u64| amount / many.max(1);
        Work { flops: of(self.flops), read: of(self.read), written: of(self.written) }
    }

    /// That of both.
    pub fn and(self, other: Work) -> Work {
        Work {
            flops: self.flops.saturating_add(other.flops),
            read: self.read.saturating_add(other.read),
            written: self.written.saturating_add(other.written),
        }
    }
}

impl Kernel {
    /// The form's name in listings.
    pub fn name(&self) -> &'static str {
        self.form().name()
    }

    /// The demands of the kernel on its operands.
    ///
    /// # Errors
    /// As [`Form::signature`].
    pub fn signature(&self, mesh: &Mesh) -> Result<Signature, Reason> {
        self.form().signature(mesh)
    }

    /// Operations on numbers, as [`Form::flops`] counts them.
    pub fn flops(&self) -> u64 {
        self.form().flops()
    }

    /// What it computes and touches.
    ///
    /// # Errors
    /// As [`Form::signature`].
    pub fn work(&self, mesh: &Mesh) -> Result<Work, Reason> {
        let Signature { reads, writes } = self.signature(mesh)?;
        let bytes = |operands: &[signature::Operand]| {
            let all = operands.iter().map(|operand| operand.elements.saturating_mul(operand.dtype.bytes()));
            all.fold(0, u64::saturating_add)
        };
        Ok(Work { flops: self.flops(), read: bytes(&reads), written: bytes(&writes) })
    }

    /// Whether read operand `read` may be the same memory as written operand `write`.
    pub fn in_place(&self, read: usize, write: usize) -> bool {
        self.form().in_place(read, write)
    }
}
