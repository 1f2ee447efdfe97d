//! The verbs, a file each.

pub mod accel;
pub mod accel_check;
pub mod accel_explain;
pub mod accel_run;
pub mod doctor;
pub mod doctor_fix;
pub mod generate;
pub mod lab_down;
pub mod lab_exec;
pub mod lab_guest;
pub mod lab_list;
pub mod lab_plans;
pub mod lab_run;
pub mod lab_status;
pub mod lab_up;
pub mod measure_run;
pub mod measure_serve;
pub mod report;
pub mod report_compare;
pub mod tapbridge;
pub mod trace;
pub mod r#try;
pub mod undo;
pub mod vtep;
pub mod vtep_status;
pub mod watch;
