//! The models compile the library's own sources, which see by this configuration that they are part of a model.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=tollgate_proofs");
    // A feature of the stores, whose sources are compiled too.
    println!("cargo::rustc-check-cfg=cfg(feature, values(\"etcd\"))");
}
