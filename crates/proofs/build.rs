//! The models compile the library's own sources, which see by this configuration that they are part of a model; and with
//! `TOLLGATE_SEEDS=1` the bugs that are seeded in them, of which `TOLLGATE_BUG` turns on one.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TOLLGATE_SEEDS");
    println!("cargo::rustc-cfg=tollgate_proofs");
    // A feature of the stores, whose sources are compiled too.
    println!("cargo::rustc-check-cfg=cfg(feature, values(\"etcd\"))");
    if std::env::var_os("TOLLGATE_SEEDS").is_some() {
        println!("cargo::rustc-cfg=tollgate_seeds");
    }
}
