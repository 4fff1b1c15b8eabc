//! Descriptors, layouts and preferences: attributes by their numbers.

use super::{INVALID_VALUE, NOT_SUPPORTED, element};
use crate::world::World;
use shardc_cuda_testing::product::{Compute, Element, Epilogue, Layout, Product};
use std::collections::{BTreeMap, HashMap};

/// All objects, by their handles.
pub type Objects = HashMap<u64, Told>;

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `cublasLtHandle_t`
    Handle,
    /// `cublasLtMatmulDesc_t`
    Product,
    /// `cublasLtMatrixLayout_t`
    Layout,
    /// `cublasLtMatmulPreference_t`
    Preference,
}

/// What the library was told of an object: the bytes of its attributes.
#[derive(Debug, Clone)]
pub struct Told {
    /// The kind.
    pub kind: Kind,
    attributes: BTreeMap<u32, Vec<u8>>,
}

/// Attributes with their bytes and what they are where nobody says it.
const PRODUCT: &[(u32, usize, u64)] = &[
    (0, 4, 0),
    (1, 4, 0),
    (2, 4, 0),
    (3, 4, 0),
    (4, 4, 0),
    (5, 4, 0),
    (6, 4, 2),
    (7, 4, 1),
    (8, 8, 0),
    (10, 8, 0),
    (11, 8, 0),
    (12, 8, 0),
    (13, 8, 0),
    (15, 4, 0),
    (22, 4, u64::MAX),
    (25, 1, 0),
    (26, 4, u64::MAX),
];
const LAYOUT: &[(u32, usize, u64)] = &[(0, 4, 0), (1, 4, 0), (2, 8, 0), (3, 8, 0), (4, 8, 0), (5, 4, 1), (6, 8, 0), (7, 8, 0)];
const PREFERENCE: &[(u32, usize, u64)] =
    &[(0, 4, 0), (1, 8, 0), (3, 4, u64::MAX), (5, 4, 256), (6, 4, 256), (7, 4, 256), (8, 4, 256), (9, 4, 0), (12, 8, u64::MAX)];

impl Kind {
    fn attributes(self) -> &'static [(u32, usize, u64)] {
        match self {
            Kind::Handle => &[],
            Kind::Product => PRODUCT,
            Kind::Layout => LAYOUT,
            Kind::Preference => PREFERENCE,
        }
    }
}

impl Told {
    /// An object with what it is made with.
    pub fn new(kind: Kind, made_with: &[(u32, u64)]) -> Told {
        let value = |(number, size, default): &(u32, usize, u64)| {
            let told = made_with.iter().find(|(n, _)| n == number).map_or(*default, |(_, value)| *value);
            (*number, told.to_le_bytes()[..*size].to_vec())
        };
        Told { kind, attributes: kind.attributes().iter().map(value).collect() }
    }

    /// Sets an attribute.
    pub fn set(&mut self, number: u32, value: Vec<u8>) -> Result<(), u32> {
        let kept = self.attributes.get_mut(&number).filter(|kept| kept.len() == value.len()).ok_or(INVALID_VALUE)?;
        *kept = value;
        Ok(())
    }

    /// The bytes of an attribute.
    pub fn get(&self, number: u32) -> Result<&[u8], u32> {
        self.attributes.get(&number).map(Vec::as_slice).ok_or(INVALID_VALUE)
    }

    fn number(&self, attribute: u32) -> u64 {
        let bytes = self.attributes.get(&attribute).map_or(&[][..], Vec::as_slice);
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(wide)
    }
}

/// A refusal: its code, and why.
pub type Refusal = (u32, String);

impl World {
    /// A new object.
    pub fn new_object(&mut self, told: Told) -> u64 {
        let id = self.id();
        self.objects.insert(id, told);
        id
    }

    /// The object of a handle.
    pub fn object(&mut self, handle: u64, kind: Kind) -> Result<&mut Told, u32> {
        self.objects.get_mut(&handle).filter(|told| told.kind == kind).ok_or(INVALID_VALUE)
    }

    fn attribute(&self, handle: u64, kind: Kind, attribute: u32) -> Result<u64, Refusal> {
        let told = self.objects.get(&handle).filter(|told| told.kind == kind);
        told.map(|told| told.number(attribute)).ok_or((INVALID_VALUE, format!("{handle:#x} is no {kind:?}")))
    }

    fn layout(&self, handle: u64) -> Result<Layout, Refusal> {
        let of = |attribute| self.attribute(handle, Kind::Layout, attribute);
        if of(1)? != 0 {
            return Err((NOT_SUPPORTED, "a matrix that does not lie column by column".into()));
        }
        Ok(Layout {
            element: known(of(0)?)?,
            rows: of(2)?,
            columns: of(3)?,
            leading: of(4)? as i64,
            batch: of(5)?,
            stride: of(6)? as i64,
        })
    }

    /// The product that a descriptor and layouts say. The scales, the room and what a candidate was
    /// chosen for are to be filled in.
    pub fn product(&self, descriptor: u64, layouts: [u64; 4]) -> Result<(Product, u64), Refusal> {
        let of = |attribute| self.attribute(descriptor, Kind::Product, attribute);
        let transposed = |attribute| match of(attribute)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err((NOT_SUPPORTED, format!("operation {other} on a matrix"))),
        };
        if of(2)? != 0 || of(5)? != 0 {
            return Err((NOT_SUPPORTED, "scales on the device, or `C` transposed".into()));
        }
        let [a, b, c, d] = layouts;
        let product = Product {
            compute: match of(0)? {
                68 => Compute::F32,
                77 => Compute::Tf32,
                70 => Compute::F64,
                other => return Err((NOT_SUPPORTED, format!("compute type {other}"))),
            },
            scale: known(of(1)?)?,
            alpha: 1.0,
            beta: 0.0,
            transposed: [transposed(3)?, transposed(4)?],
            a: self.layout(a)?,
            b: self.layout(b)?,
            c: self.layout(c)?,
            d: self.layout(d)?,
            epilogue: match of(7)? {
                1 => Epilogue::Default,
                4 => Epilogue::Bias,
                256 => Epilogue::BiasGradientA,
                512 => Epilogue::BiasGradientB,
                other => return Err((NOT_SUPPORTED, format!("epilogue {other}"))),
            },
            bias: match of(26)? {
                0xffff_ffff => None,
                number => Some(known(number)?),
            },
            bias_stride: of(10)? as i64,
            reductions: 0,
            workspace: 0,
            alignment: [1; 4],
        };
        Ok((product, of(8)?))
    }

    /// What a preference says: room, reduction schemes, alignments.
    pub fn preference(&self, handle: u64) -> Result<(u64, u32, [u64; 4]), Refusal> {
        let of = |attribute| self.attribute(handle, Kind::Preference, attribute);
        Ok((of(1)?, of(3)? as u32, [of(5)?, of(6)?, of(7)?, of(8)?]))
    }
}

fn known(number: u64) -> Result<Element, Refusal> {
    element(number as u32).ok_or((NOT_SUPPORTED, format!("element type {number}")))
}
