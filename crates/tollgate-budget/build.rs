//! Builds known bugs in, to be turned on one at a time, when the models are to show that they find them:
//! `TOLLGATE_SEEDS=1 TOLLGATE_BUG=name cargo test …`. Not part of the published package.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TOLLGATE_SEEDS");
    if std::env::var_os("TOLLGATE_SEEDS").is_some() {
        println!("cargo::rustc-cfg=tollgate_seeds");
    }
}
