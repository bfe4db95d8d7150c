//! Seeds one known bug when the models are to show that they find it: `TOLLGATE_BUG=name cargo test …`.
//! Not part of the published package.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TOLLGATE_BUG");
    if let Ok(bug) = std::env::var("TOLLGATE_BUG") {
        println!("cargo::rustc-cfg=tollgate_bug=\"{bug}\"");
    }
}
