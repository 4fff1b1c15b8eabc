//! Where the program looks for NVIDIA's libraries besides the system's places: a folder beside it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo:rustc-link-arg-bins=-Wl,-rpath,$ORIGIN/gpu-libs");
    }
}
