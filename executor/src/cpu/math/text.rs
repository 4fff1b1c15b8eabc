//! The functions of generated CUDA kernels, compiled for the host, give the same bits.

use crate::cpu::element::{Cast, Element, convert};
use crate::cpu::lanes::{self, Lanes};
use crate::cpu::number::Number;
use bytemuck::Pod;
use half::{bf16, f16};
use shardc_ir::scalar::{Binary, Rounding, Unary};
use shardc_testkit::damage;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The names of `device.cuh` that the functions use.
const DEVICE: &str = r#"
#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
#define INLINE static inline
struct bf16 { u16 bits; };
struct f16 { u16 bits; };
struct bool8 { u8 bits; };
template <class T, class F> T same_bits(F x) { T y; memcpy(&y, &x, sizeof y); return y; }
INLINE u32 bits_of(float x) { return same_bits<u32>(x); }
INLINE float float_of(u32 x) { return same_bits<float>(x); }
INLINE u64 bits_of(double x) { return same_bits<u64>(x); }
INLINE double double_of(u64 x) { return same_bits<double>(x); }
INLINE float widened(bf16 x) { return float_of((u32)x.bits << 16); }
INLINE float widened(f16 x) { return _cvtsh_ss(x.bits); }
INLINE bf16 narrowed_bf16(float x) {
    u32 bits = bits_of(x);
    return bf16{(u16)(x != x ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
INLINE f16 narrowed_f16(float x) { return f16{(u16)_cvtss_sh(x, 0)}; }
"#;

/// Reads operands of each type and writes the results of a function of them.
const MAIN: &str = r#"
template <class T> struct Values { T* at; i64 count; };
template <class T> Values<T> values() {
    i64 count;
    if (fread(&count, 8, 1, stdin) != 1) abort();
    T* at = (T*)malloc(count * sizeof(T));
    if (fread(at, sizeof(T), count, stdin) != (size_t)count) abort();
    return {at, count};
}
template <class T, class F> void results(Values<T> a, F f) {
    for (i64 i = 0; i < a.count; i++) { auto y = f(i); fwrite(&y, sizeof y, 1, stdout); }
}
"#;

/// A type with its name in the text, and that of conversions to it.
trait Named: Element {
    const TYPE: &'static str;
    const NAME: &'static str;
    fn is_none(self) -> bool;
}

macro_rules! named {
    ($($type:ty, $text:literal, $name:literal, $none:expr;)*) => {
        $(impl Named for $type {
            const TYPE: &'static str = $text;
            const NAME: &'static str = $name;
            fn is_none(self) -> bool {
                $none(self)
            }
        })*
    };
}
named! {
    f32, "float", "f32", f32::is_nan;
    f64, "double", "f64", f64::is_nan;
    i64, "i64", "i64", |_| false;
    bf16, "bf16", "bf16", bf16::is_nan;
    f16, "f16", "f16", f16::is_nan;
    u8, "bool8", "bool8", |_| false;
}

/// Holds the first bytes against what is right, and gives their number.
type Check = Box<dyn Fn(&[u8]) -> Result<usize, String> + Send + Sync>;

/// The program, its input, and what its output is checked against.
#[derive(Default)]
struct Cases {
    text: String,
    input: Vec<u8>,
    checks: Vec<Check>,
}

impl Cases {
    fn operands<T: Named>(&mut self, name: &str, values: &[T]) {
        let _ = writeln!(self.text, "auto {name} = values<{}>();", T::TYPE);
        self.input.extend((values.len() as i64).to_ne_bytes());
        self.input.extend(bytemuck::cast_slice::<T, u8>(values));
    }

    /// `call` says what is called, of the operands' names; `show` writes operands of a wrong
    /// result.
    fn results<T: Named>(&mut self, of: &str, call: &str, want: Vec<T>, show: impl Fn(usize) -> String + Send + Sync + 'static) {
        let _ = writeln!(self.text, "results({of}, [=](i64 i) {{ return {call}; }});");
        let call = call.to_owned();
        self.checks.push(Box::new(move |bytes| {
            let bytes = &bytes[..size_of_val(&want[..])];
            let have: Vec<T> = bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
            for (i, (have, want)) in have.iter().zip(&want).enumerate() {
                let same = bytemuck::bytes_of(have) == bytemuck::bytes_of(want) || (have.is_none() && want.is_none());
                if !same {
                    return Err(format!("{call} of {}: {have:?}, not {want:?}", show(i)));
                }
            }
            Ok(bytes.len())
        }));
    }

    /// Every function of one type, over pairs of values.
    fn functions<T: Named + Number>(&mut self, a: &[T], b: &[T]) {
        let (of_a, of_b) = (format!("a_{}", T::NAME), format!("b_{}", T::NAME));
        self.operands(&of_a, a);
        self.operands(&of_b, b);
        let mut out = vec![T::zeroed(); a.len()];
        let (each_a, each_b) = (Lanes::Each(a), Lanes::Each(b));
        for op in Unary::ALL {
            lanes::unary(op, a, &mut out);
            let name = op.name();
            let a = a.to_vec();
            self.results(&of_a, &format!("{name}_({of_a}.at[i])"), out.clone(), move |i| format!("{:?}", a[i]));
        }
        for to in Rounding::ALL {
            lanes::round(to, a, &mut out);
            let a = a.to_vec();
            self.results(&of_a, &format!("round_{}({of_a}.at[i])", to.name()), out.clone(), move |i| format!("{:?}", a[i]));
        }
        for op in Binary::ALL {
            lanes::binary(op, each_a, each_b, &mut out);
            let (a, b) = (a.to_vec(), b.to_vec());
            let call = format!("{}_({of_a}.at[i], {of_b}.at[i])", op.name());
            self.results(&of_a, &call, out.clone(), move |i| format!("{:?}, {:?}", a[i], b[i]));
        }
        // Constant exponents have loops of their own.
        for exponent in [2.0, 3.0, -1.0, 0.5] {
            lanes::binary(Binary::Pow, each_a, Lanes::All(T::from_f64(exponent)), &mut out);
            let a = a.to_vec();
            let call = format!("pow_({of_a}.at[i], ({})({exponent:?}))", T::TYPE);
            self.results(&of_a, &call, out.clone(), move |i| format!("{:?}", a[i]));
        }
        lanes::select(a, each_b, each_a, &mut out);
        let shown = a.to_vec();
        let call = format!("select_({of_a}.at[i], {of_b}.at[i], {of_a}.at[i])");
        self.results(&of_a, &call, out, move |i| format!("{:?}", shown[i]));
    }

    /// Every conversion of values, which are operands already.
    fn conversions<T: Named>(&mut self, of: &str, values: &[T]) {
        self.conversion::<T, f32>(of, values);
        self.conversion::<T, f64>(of, values);
        self.conversion::<T, i64>(of, values);
        self.conversion::<T, bf16>(of, values);
        self.conversion::<T, f16>(of, values);
        self.conversion::<T, u8>(of, values);
    }

    fn conversion<T: Named + Cast<U>, U: Named>(&mut self, of: &str, values: &[T]) {
        let mut out = vec![U::zeroed(); values.len()];
        convert(values, &mut out);
        let values = values.to_vec();
        self.results(of, &format!("to_{}({of}.at[i])", U::NAME), out, move |i| format!("{:?}", values[i]));
    }

    /// Compiles the program with those `functions` and runs it; `name` is of no other run.
    fn run(&self, functions: &str, name: &str) -> Result<(), String> {
        let folder = std::env::temp_dir().join(format!("shardc-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let ran = self.run_in(&folder, &functions.replace("#pragma once", ""));
        std::fs::remove_dir_all(&folder).unwrap();
        ran
    }

    fn run_in(&self, folder: &Path, functions: &str) -> Result<(), String> {
        let (source, program) = (folder.join("math.cpp"), folder.join("math"));
        std::fs::write(&source, format!("{DEVICE}{functions}{MAIN}int main() {{\n{}}}\n", self.text)).unwrap();
        let flags = ["-std=c++17", "-O2", "-mfma", "-mf16c", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-o"];
        let compiled = Command::new("g++").args(flags).args([&program, &source]).output().unwrap();
        if !compiled.status.success() {
            return Err(String::from_utf8_lossy(&compiled.stderr).into_owned());
        }
        let mut run = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = run.stdin.take().unwrap();
        let output = std::thread::scope(|scope| {
            let input = &self.input;
            // A program that ends early does not read all.
            scope.spawn(move || stdin.write_all(input));
            run.wait_with_output().unwrap()
        });
        if !output.status.success() {
            return Err(format!("the program ends with {}", output.status));
        }
        let mut rest = &output.stdout[..];
        for check in &self.checks {
            rest = &rest[check(rest)?..];
        }
        if rest.is_empty() { Ok(()) } else { Err(format!("{} bytes too many", rest.len())) }
    }
}

/// Random bits, the same in every run.
struct Bits(u64);

impl Bits {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// In `-scale..scale`.
    fn within(&mut self, scale: f64) -> f64 {
        (self.next() as i64) as f64 / 9_223_372_036_854_775_808.0 * scale
    }
}

/// Pairs of the values that `edges` has, and of what `draw` gives.
fn pairs<T: Pod>(edges: &[T], mut draw: impl FnMut(usize) -> T) -> (Vec<T>, Vec<T>) {
    let (mut a, mut b): (Vec<T>, Vec<T>) = edges.iter().flat_map(|a| edges.iter().map(move |b| (*a, *b))).unzip();
    for i in 0..120_000 {
        a.push(draw(i));
        // Few of the second operands are of the same kind as the first.
        b.push(draw(i / 7));
    }
    (a, b)
}

/// Every function and conversion of every type.
fn all() -> Cases {
    let mut bits = Bits(1);
    let mut edges = vec![f64::NAN];
    for x in [
        0.0,
        5e-324,
        1e-310,
        f64::MIN_POSITIVE,
        2.3e-308,
        1e-45,
        1e-40,
        f64::from(f32::MIN_POSITIVE),
        1.2e-38,
        6e-8,
        6.2e-5,
        0.5,
        1.0,
        1.0 + f64::EPSILON,
        1.5,
        2.0,
        2.5,
        3.0,
        6.0,
        7.0,
        20.0,
        87.5,
        89.0,
        710.0,
        708.4,
        709.8,
        745.2,
        746.0,
        65_504.0,
        65_519.9,
        65_520.0,
        16_777_217.0,
        2_147_483_648.0,
        1e15,
        9_007_199_254_740_991.0,
        9.3e18,
        1.9e19,
        9_223_372_036_854_775_808.0,
        3.39e38,
        3.41e38,
        1e300,
        f64::MAX,
        f64::INFINITY,
    ] {
        edges.extend([x, -x]);
    }
    let scales = [1.0, 0.01, 6.0, 12.0, 100.0, 800.0, 1e6, 1e16];
    let mut cases = Cases::default();
    let (a, b) = pairs(&edges, |i| match i % 16 {
        0..6 => f64::from_bits(bits.next()),
        6 => bits.within(20.0).round(),
        7 => 1.0 + bits.within(1e-6),
        at => bits.within(scales[at - 8]),
    });
    cases.functions(&a, &b);
    cases.conversions("a_f64", &a);
    let edges32: Vec<f32> = edges.iter().map(|x| *x as f32).collect();
    let (a, b) = pairs(&edges32, |i| match i % 16 {
        0..6 => f32::from_bits(bits.next() as u32),
        6 => bits.within(20.0).round() as f32,
        7 => 1.0 + bits.within(1e-4) as f32,
        at => bits.within(scales[at - 8]) as f32,
    });
    cases.functions(&a, &b);
    cases.conversions("a_f32", &a);
    let whole =
        [0, 1, 2, 3, 7, 255, 1 << 24, (1 << 24) + 1, u32::MAX as i64, (u32::MAX as i64) + 1, (1 << 53) + 1, i64::MAX, i64::MIN];
    let whole: Vec<i64> = whole.into_iter().flat_map(|x: i64| [x, x.wrapping_neg(), x.wrapping_sub(1)]).collect();
    let (a, b) = pairs(&whole, |_| bits.next() as i64 >> (bits.next() % 64));
    cases.functions(&a, &b);
    cases.conversions("a_i64", &a);
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let (brain, half) = (bytemuck::cast_slice::<u16, bf16>(&halves), bytemuck::cast_slice::<u16, f16>(&halves));
    cases.operands("a_bf16", brain);
    cases.conversions("a_bf16", brain);
    cases.operands("a_f16", half);
    cases.conversions("a_f16", half);
    let truths: Vec<u8> = (0..=u8::MAX).collect();
    cases.operands("a_bool8", &truths);
    cases.conversions("a_bool8", &truths);
    cases
}

/// Damages that change no result. The compared values have every bound that is changed.
const HARMLESS: [(&str, &str); 12] = [
    ("x > -9223372036854775808.0 && x <= 9223372036854775808.0", "what is 2^63 takes another value in the next line"),
    ("(bits & 0x7fffffffu) <= 0x7f800000u", "infinity is rounded to itself"),
    ("x = x <= -87.5f ? -87.5f : x;", "the bound is replaced by itself"),
    ("bool subnormal = x <= 1.17549435e-38f;", "scaling changes no result of normal numbers"),
    ("x = x <= -746.0 ? -746.0 : x;", "the bound is replaced by itself"),
    ("bool subnormal = x <= 2.2250738585072014e-308;", "scaling changes no result of normal numbers"),
    ("quotient(x <= 0.0 ? p : 1.0,", "p is 1 where x is 0"),
    ("rest = fabs(y) <= 800.0 ? rest : 0.0;", "the power is infinite or 0 with any rest"),
    ("y = y <= -800.0 ? -800.0 : y;", "the bound is replaced by itself"),
    ("rest != T(0) && (rest <= T(0))", "the rest is not 0 there"),
    ("INLINE i64 abs_(i64 x) { return x <= 0", "0 is its own negative"),
    ("rest != 0 && (rest <= 0)", "the rest is not 0 there"),
];

/// The text of the functions.
fn functions() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/src/prelude/math.h")).unwrap()
}

#[test]
fn text_gives_the_same_bits() {
    if !can_run() {
        eprintln!("skipped: no g++ on x86-64 with FMA and F16C");
        return;
    }
    all().run(&functions(), "math-text").unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn damaged_text_is_found() {
    if !can_run() {
        eprintln!("skipped: no g++ on x86-64 with FMA and F16C");
        return;
    }
    let is_full = std::env::var("SHARDC_CUDA").is_ok_and(|value| value == "all");
    let tried = damage::some(damage::of(&functions()), damage::wanted(if is_full { 80 } else { 8 }));
    let (cases, next) = (all(), AtomicUsize::new(0));
    let work = &|thread: usize| {
        let mut survivors = vec![];
        while let Some(damaged) = tried.get(next.fetch_add(1, Relaxed)) {
            if cases.run(&damaged.text, &format!("math-damaged-{thread}")).is_ok() {
                survivors.push(&damaged.what);
            }
        }
        survivors
    };
    let survivors: Vec<&String> = std::thread::scope(|scope| {
        let threads = [0, 1].map(|thread| scope.spawn(move || work(thread)));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    eprintln!("{} damages of the scalar functions, {} harmless, all others found", tried.len(), survivors.len());
    let is_harmless = |what: &&String| HARMLESS.iter().any(|(line, _)| what.contains(line));
    let (_, missed): (Vec<&String>, Vec<&String>) = survivors.into_iter().partition(is_harmless);
    assert!(missed.is_empty(), "not found:\n{missed:#?}");
}

#[cfg(target_arch = "x86_64")]
fn can_run() -> bool {
    let features = std::is_x86_feature_detected!("fma") && std::is_x86_feature_detected!("f16c");
    features && Command::new("g++").arg("--version").output().is_ok_and(|output| output.status.success())
}

#[cfg(not(target_arch = "x86_64"))]
fn can_run() -> bool {
    false
}
