//! The library itself: cubins, PTX, errors and threads.

mod support;

use shardc_nvrtc::Nvrtc;
use support::{nvrtc, text};

#[test]
fn a_missing_library_is_an_error_that_says_what_to_do() {
    if let Err(why) = Nvrtc::find() {
        for word in ["libnvrtc", "pip install", "LD_LIBRARY_PATH"] {
            assert!(why.contains(word), "{why}");
        }
    }
}

#[test]
fn it_knows_itself() {
    let Some(nvrtc) = nvrtc() else { return };
    assert!(nvrtc.version() >= (12, 0), "{:?}", nvrtc.version());
    assert!([80, 90].iter().all(|arch| nvrtc.architectures().contains(arch)), "{:?}", nvrtc.architectures());
    assert_eq!(Nvrtc::find().unwrap().version(), nvrtc.version());
}

#[test]
fn texts_become_cubins_and_ptx() {
    let Some(nvrtc) = nvrtc() else { return };
    let both = format!(
        "{}extern \"C\" __global__ void other(float* a) {{ __shared__ float s[64]; s[threadIdx.x] = a[0]; __syncthreads(); a[1] = s[threadIdx.x ^ 1]; }}",
        text(3)
    );
    let made = nvrtc.assemble("both.cu", &both, 90).unwrap();
    assert!(made.cubin.starts_with(b"\x7fELF"));
    let names: Vec<(&str, u32)> = made.kernels.iter().map(|k| (k.entry.as_str(), k.shared)).collect();
    assert_eq!(names, [("k3", 0), ("other", 256)]);
    assert!(made.kernels.iter().all(|k| k.registers > 0 && k.spill_stores == 0));

    let ptx = nvrtc.ptx("both.cu", &both, 90).unwrap();
    assert_eq!(nvrtc.assemble_with_ptx("both.cu", &both, 90).unwrap(), (made, ptx.clone()));
    assert!(ptx.contains(".entry k3") && ptx.contains(".target sm_90") && !ptx.contains('\0'), "{ptx}");
    // Products and sums stay two operations.
    assert!(ptx.contains("mul.f32") || ptx.contains("mul.rn.f32"), "{ptx}");
    assert!(!ptx.contains("fma"), "{ptx}");
}

#[test]
fn cubins_do_not_follow_from_names() {
    let Some(nvrtc) = nvrtc() else { return };
    let text = "static __device__ __noinline__ float f(float* a, int n) { return n > 3 ? a[n] * f(a, n - 2) : a[0]; }
        static __constant__ float table[4] = {1, 2, 3, 4};
        extern \"C\" __global__ void calls(float* a, int n) { a[0] = f(a, n) + table[n]; }";
    let of = |name: &str| nvrtc.assemble(name, text, 80).unwrap();
    assert_eq!(of("a.cu"), of("another \"name\"\n\\"));
}

#[test]
fn errors_are_what_the_compiler_says() {
    let Some(nvrtc) = nvrtc() else { return };
    let fails = |text: &str| nvrtc.assemble("a kernel", text, 90).unwrap_err();

    let why = fails("\n\nextern \"C\" __global__ void k(float* a) { a[0] = ; }");
    assert!(why.contains("kernel `a kernel`: a kernel(3): error: expected an expression"), "{why}");
    let why = fails("struct prelude {};\n#line 7 \"k.cu\"\nextern \"C\" __global__ void k(float* a) { a[0] = x; }");
    assert!(why.contains("k.cu(7): error: identifier \"x\" is undefined"), "{why}");
    assert!(nvrtc.ptx("k", "void f() { x; }", 90).unwrap_err().contains("identifier"));

    // What only the assembler finds.
    let why = fails(
        "extern \"C\" __global__ void k(float* a) { __shared__ float s[20000]; s[threadIdx.x] = 1; a[0] = s[threadIdx.x ^ 1]; }",
    );
    assert!(why.contains("uses too much shared data") && !why.contains("info") && !why.contains('\0'), "{why}");

    let many: String = (0..500).map(|i| format!("int f{i}() {{ return undefined_{i}; }}\n")).collect();
    let why = fails(&many);
    assert!(why.len() < 5000 && why.contains("undefined_0") && why.ends_with("lines more)"), "{why}");
    let long = format!("int f() {{ return {}; }}", "ä".repeat(20_000));
    assert!(fails(&long).len() < 5000);

    assert!(fails("a\0b").contains("zero byte"));
    assert!(fails("int x;").contains("no kernel"));
    assert!(nvrtc.assemble("k", &text(1), 33).unwrap_err().contains("does not know sm_33; it knows"));
}

#[test]
fn threads_give_the_same_in_order() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut texts: Vec<(String, String)> = (0..12).map(|i| (format!("k{i}"), text(i))).collect();
    texts[5].1 = "broken".to_string();
    let texts: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let together = nvrtc.assemble_all(&texts, 90);
    let one_by_one: Vec<_> = texts.iter().map(|(name, text)| nvrtc.assemble(name, text, 90)).collect();
    assert_eq!(together, one_by_one);
    for (i, made) in together.iter().enumerate() {
        match made {
            Ok(made) => assert_eq!(made.kernels[0].entry, format!("k{i}")),
            Err(why) => assert!(i == 5 && why.contains("kernel `k5`"), "{why}"),
        }
    }
    assert!(nvrtc.assemble_all(&[], 90).is_empty());
}
