//! Compiles the programs of `bpf/`.

fn main() -> std::process::ExitCode {
    bpf_build::compile()
}
