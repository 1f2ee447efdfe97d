//! OV060: CPUs run at their lowest frequency.

use super::{Check, Cost, Outcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV060",
    title: "CPUs run at their lowest frequency",
    severity: Severity::Warn,
    explanation: "The governor powersave holds a CPU at its lowest frequency where the driver only \
        does as it is told (acpi-cpufreq, cppc_cpufreq, intel_cpufreq): every packet \
        takes longer. With intel_pstate or amd-pstate-epp, which choose by themselves, a \
        governor of this name is the usual one and no finding.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    const CHOOSE_THEMSELVES: [&str; 3] = ["intel_pstate", "amd-pstate-epp", "amd_pstate_epp"];
    let Some(scaling) = &view.host().machine.scaling else { return };
    let Some(policies) = scaling.governors.get("powersave") else { return };
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
                "power and heat",
                "cpupower frequency-set -g powersave".to_owned(),
            ),
    );
}
