//! OV060: CPUs run at their lowest frequency.

use super::{Check, CheckOutcome, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV060",
    title: "CPUs run at their lowest frequency",
    severity: Severity::Warn,
    explanation: "The governor powersave keeps a CPU at its lowest frequency if the driver follows \
        the governor (acpi-cpufreq, cppc_cpufreq, intel_cpufreq), so every packet takes longer. \
        The drivers intel_pstate and amd-pstate-epp choose the frequency themselves; with them \
        powersave is the usual governor and no finding.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    const CHOOSE_THEMSELVES: [&str; 3] = ["intel_pstate", "amd-pstate-epp", "amd_pstate_epp"];
    // The kernel does not control the frequency.
    let Some(scaling) = &view.host().machine.scaling else { return };
    let Some(policies) = scaling.governors.get("powersave") else { return };
    // With these drivers the governor does not choose the frequency.
    if CHOOSE_THEMSELVES.contains(&scaling.driver.as_str()) {
        return;
    }
    let all: u32 = scaling.governors.values().fold(0, |all, count| all.saturating_add(*count));
    outcome.add(
        CHECK
            .on_machine("CPUs")
            .evidence(
                format!("{policies} of {all} policies: powersave, driver {}", scaling.driver),
                "/sys/devices/system/cpu/cpufreq",
            )
            .cost(Cost::estimated(0.5, "CPU time"))
            .by_hand(
                "cpupower frequency-set -g performance".to_owned(),
                "higher power consumption and temperature",
                "cpupower frequency-set -g powersave".to_owned(),
            ),
    );
}
