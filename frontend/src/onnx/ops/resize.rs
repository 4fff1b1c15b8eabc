//! Resize, one dimension after another: each is a matrix of weights from inputs to outputs, or a
//! choice of inputs.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::index::Gather;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::types::{Tensor, Type};

type Outputs = Result<Vec<Value>, Reason>;

/// Another number of elements along some dimensions, between which values are interpolated
pub(in crate::onnx) fn resize(c: &mut Call<'_, '_>) -> Outputs {
    if c.opset() < 11 {
        return upsample(c);
    }
    let resize = Resize::read(c)?;
    let lines = lines(c)?;
    resize.all(c, lines)
}

/// The same by scales alone, as before op set 11: outputs stand for positions that their numbers
/// divided by the scale give
pub(in crate::onnx) fn upsample(c: &mut Call<'_, '_>) -> Outputs {
    let shape = c.shape(&c.input(0)?)?;
    let scales = match c.attribute_floats("scales")? {
        Some(scales) => scales,
        None => c.known(1, "scales")?.to_f64(),
    };
    if scales.len() != shape.len() {
        return Err(reason!("{} scales of {} dimensions", scales.len(), shape.len()));
    }
    let mode = one_of(c, "mode", &["nearest", "linear"])?;
    let (coordinates, nearest) = ("asymmetric".to_string(), "floor".to_string());
    let resize = Resize { mode, coordinates, nearest, a: 0.0, exclude_outside: false, antialias: false };
    let lines = (0..shape.len()).map(|axis| Line::scaled(axis, shape[axis], scales[axis])).collect::<Result<_, _>>()?;
    resize.all(c, lines)
}

/// A text attribute, by default the first of those that are known.
fn one_of(c: &mut Call<'_, '_>, name: &'static str, known: &[&str]) -> Result<String, Reason> {
    let value = c.attribute_string(name, known[0])?;
    if known.contains(&value.as_str()) { Ok(value) } else { Err(reason!("`{name}` `{value}` is not supported")) }
}

/// How values are interpolated.
struct Resize {
    mode: String,
    coordinates: String,
    nearest: String,
    /// The coefficient of cubic interpolation.
    a: f64,
    exclude_outside: bool,
    antialias: bool,
}

/// One dimension to resize.
struct Line {
    axis: usize,
    inputs: u64,
    outputs: u64,
    scale: f64,
}

impl Line {
    fn new(axis: usize, inputs: u64, scale: f64, outputs: f64) -> Result<Line, Reason> {
        if !(scale.is_finite() && scale > 0.0 && (1.0..1e9).contains(&outputs)) {
            return Err(reason!("dimension {axis} of {inputs} elements would have {outputs}"));
        }
        Ok(Line { axis, inputs, outputs: outputs as u64, scale })
    }

    fn scaled(axis: usize, inputs: u64, scale: f64) -> Result<Line, Reason> {
        Line::new(axis, inputs, scale, f64::from((inputs as f32 * scale as f32).floor()))
    }
}

impl Resize {
    fn read(c: &mut Call<'_, '_>) -> Result<Resize, Reason> {
        // It is for `tf_crop_and_resize` only.
        c.ignore("extrapolation_value");
        let modes = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"];
        Ok(Resize {
            mode: one_of(c, "mode", &["nearest", "linear", "cubic"])?,
            coordinates: one_of(c, "coordinate_transformation_mode", &modes)?,
            nearest: one_of(c, "nearest_mode", &["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])?,
            a: c.attribute_float("cubic_coeff_a", -0.75)?,
            exclude_outside: c.attribute_int("exclude_outside", 0)? != 0,
            antialias: c.attribute_int("antialias", 0)? != 0,
        })
    }

    fn all(&self, c: &mut Call<'_, '_>, lines: Vec<Line>) -> Outputs {
        let mut y = c.input(0)?;
        for line in lines.into_iter().filter(|line| line.scale != 1.0) {
            y = self.along(c, &y, line)?;
        }
        Ok(vec![y])
    }

    fn along(&self, c: &mut Call<'_, '_>, x: &Value, line: Line) -> Result<Value, Reason> {
        if self.coordinates == "align_corners" && line.scale * line.inputs as f64 - line.outputs as f64 > 1e-4 {
            return Err(reason!(
                "corners aligned where {} elements times {} are no whole number mean different things in ONNX and its runtimes",
                line.inputs,
                line.scale
            ));
        }
        if self.mode == "nearest" {
            c.context.allow(&[line.outputs])?;
            let chosen: Vec<u64> = (0..line.outputs).map(|o| self.chosen(&line, o)).collect();
            return choose(c, x, &line, &chosen);
        }
        c.context.allow(&[line.inputs, line.outputs])?;
        let mut weights = vec![0.0; (line.inputs * line.outputs) as usize];
        for output in 0..line.outputs {
            for (input, weight) in self.weights(&line, output) {
                weights[(input * line.outputs + output) as usize] += weight;
            }
        }
        let ty = c.ty(x)?;
        let letters: String = ('a'..='y').take(ty.rank()).collect();
        let letter = letters.chars().nth(line.axis).filter(|_| ty.rank() <= 25).ok_or("it has too many dimensions")?;
        let spec = format!("{letters},{letter}z->{}", letters.replace(letter, "z"));
        let matrix = Tensor::from_f64(Type::new(ty.dtype, [line.inputs, line.outputs]), &weights);
        c.emit(Contract::new(spec), &[x.clone(), Value::Known(matrix)])
    }

    /// The position among the inputs, perhaps between or outside them, that an output stands for.
    fn position(&self, line: &Line, output: u64) -> f64 {
        let (o, inputs, outputs) = (output as f64, line.inputs as f64, line.outputs as f64);
        let half_pixel = (o + 0.5) / line.scale - 0.5;
        match self.coordinates.as_str() {
            "half_pixel_symmetric" => inputs / 2.0 * (1.0 - outputs / (inputs * line.scale)) + half_pixel,
            "pytorch_half_pixel" if line.outputs == 1 => 0.0,
            "align_corners" if line.outputs == 1 => 0.0,
            "align_corners" => o * (inputs - 1.0) / (outputs - 1.0),
            "asymmetric" => o / line.scale,
            _ => half_pixel,
        }
    }

    /// The input nearest to an output.
    fn chosen(&self, line: &Line, output: u64) -> u64 {
        // In f32 halves are met that rounding in f64 misses.
        let x = self.position(line, output) as f32;
        let rounded = match self.nearest.as_str() {
            "floor" => x.floor(),
            "ceil" => x.ceil(),
            "round_prefer_ceil" => (x + 0.5).floor(),
            _ => (x - 0.5).ceil(),
        };
        (rounded.max(0.0) as u64).min(line.inputs - 1)
    }

    /// The inputs that an output is a mean of, and their weights; an input may come more than once.
    fn weights(&self, line: &Line, output: u64) -> Vec<(u64, f64)> {
        let last = line.inputs as i64 - 1;
        let shrink = if self.antialias { line.scale.min(1.0) } else { 1.0 };
        let linear = self.mode == "linear";
        let x = self.position(line, output);
        let x = if linear && shrink == 1.0 { x.clamp(0.0, last as f64) } else { x };
        let reach = if linear { 1.0 } else { 2.0 } / shrink;
        let kernel = |t: f64| if linear { (1.0 - t.abs()).max(0.0) } else { self.cubic(t.abs()) };
        let seen = (x - reach).floor() as i64..=(x + reach).ceil() as i64;
        let all: Vec<(u64, f64)> = seen
            .filter(|i| !self.exclude_outside || (0..=last).contains(i))
            .map(|i| (i.clamp(0, last) as u64, kernel((i as f64 - x) * shrink)))
            .filter(|(_, weight)| *weight != 0.0)
            .collect();
        let total: f64 = all.iter().map(|(_, weight)| weight).sum();
        all.into_iter().map(|(i, weight)| (i, weight / total)).collect()
    }

    /// Source: Keys, Cubic convolution interpolation for digital image processing (1981).
    fn cubic(&self, t: f64) -> f64 {
        let a = self.a;
        match t {
            t if t <= 1.0 => ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0,
            t if t < 2.0 => ((a * t - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a,
            _ => 0.0,
        }
    }
}

/// `x` with the `chosen` elements along a dimension: repeated where each is taken equally often in
/// turn, else gathered.
fn choose(c: &mut Call<'_, '_>, x: &Value, line: &Line, chosen: &[u64]) -> Result<Value, Reason> {
    let shape = c.shape(x)?;
    let times = line.outputs / line.inputs.max(1);
    let repeats = times * line.inputs == line.outputs && (0..line.outputs).all(|o| chosen[o as usize] == o / times);
    if repeats {
        let with = |n: u64| [&shape[..=line.axis], &[n], &shape[line.axis + 1..]].concat();
        let apart = c.reshape(x, with(1))?;
        let repeated = c.broadcast(&apart, with(times))?;
        let mut joined = shape.clone();
        joined[line.axis] = line.outputs;
        return c.reshape(&repeated, joined);
    }
    let indices: Vec<i64> = chosen.iter().map(|i| *i as i64).collect();
    let indices = Value::Known(Tensor::from_i64([line.outputs], &indices));
    c.emit(Gather::along(line.axis), &[x.clone(), indices])
}

/// The scaling of each dimension that scales or sizes name.
fn lines(c: &mut Call<'_, '_>) -> Result<Vec<Line>, Reason> {
    let shape = c.shape(&c.input(0)?)?;
    let axes = match c.attribute_ints("axes")? {
        Some(axes) => {
            c.axes(&axes, shape.len())?;
            axes.iter().map(|a| c.axis(*a, shape.len())).collect::<Result<Vec<usize>, _>>()?
        }
        None => (0..shape.len()).collect(),
    };
    let policy = one_of(c, "keep_aspect_ratio_policy", &["stretch", "not_larger", "not_smaller"])?;
    let given = |c: &Call<'_, '_>, i: usize, what: &str| match c.optional(i) {
        Some(Value::Known(t)) if t.ty.elements() == 0 => Ok(None),
        Some(_) => c.known(i, what).map(|t| Some(t.to_f64())),
        None => Ok(None),
    };
    let numbers = match (given(c, 2, "scales")?, given(c, 3, "sizes")?) {
        (Some(scales), None) if scales.len() == axes.len() => {
            return axes.iter().zip(scales).map(|(a, scale)| Line::scaled(*a, shape[*a], scale)).collect();
        }
        (None, Some(sizes)) if sizes.len() == axes.len() => sizes,
        _ => return Err(reason!("it needs either scales or sizes of {} dimensions", axes.len())),
    };
    let ratios: Vec<f64> = axes.iter().zip(&numbers).map(|(a, n)| n / shape[*a] as f64).collect();
    let shared = match policy.as_str() {
        "not_larger" => Some(ratios.iter().copied().fold(f64::INFINITY, f64::min)),
        "not_smaller" => Some(ratios.iter().copied().fold(0.0, f64::max)),
        _ => None,
    };
    let line = |((axis, size), ratio): ((&usize, f64), f64)| {
        let (scale, size) = shared.map_or((ratio, size), |s| (s, (s * shape[*axis] as f64 + 0.5).floor()));
        Line::new(*axis, shape[*axis], scale, size)
    };
    axes.iter().zip(numbers).zip(ratios).map(line).collect()
}
