/*
 * In front of ip(8): calls the hook after a VXLAN device was made, and before a namespace is deleted.
 * A program, because tests call ip(8) thousands of times, and a shell takes long in an emulated guest.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int run(char *const arguments[])
{
	int status = 0;
	pid_t child = fork();

	if (!child) {
		execv(arguments[0], arguments);
		_exit(127);
	}
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int count, char **arguments)
{
	const char *accel = getenv("KSELFTEST_ACCEL");
	char *hook[] = { HOOK, "end", "-", 0 };
	int adds = 0, vxlan = 0, status;

	arguments[0] = REAL;
	/* An ip(8) that is run in a namespace is this program, too. */
	if (!accel || !*accel ||
	    (count >= 3 && !strcmp(arguments[1], "netns") && !strncmp(arguments[2], "e", 1))) {
		execv(REAL, arguments);
		return 127;
	}
	/* lib.sh asks for the processes of a namespace before it deletes it. */
	if (count >= 4 && !strcmp(arguments[1], "netns") &&
	    (!strncmp(arguments[2], "del", 3) || !strcmp(arguments[2], "pids"))) {
		hook[2] = arguments[3];
		run(hook);
		execv(REAL, arguments);
		return 127;
	}
	for (int i = 1; i < count; i++) {
		adds |= !strcmp(arguments[i], "add") || !strcmp(arguments[i], "a");
		vxlan |= i > 1 && !strcmp(arguments[i - 1], "type") && !strcmp(arguments[i], "vxlan");
		if (i + 1 < count && (!strcmp(arguments[i], "-n") || !strcmp(arguments[i], "-netns") ||
				      (!strcmp(arguments[i], "netns") && i > 1)))
			hook[2] = arguments[i + 1];
	}
	if (!adds || !vxlan) {
		execv(REAL, arguments);
		return 127;
	}
	status = run(arguments);
	if (!status) {
		hook[1] = "start";
		run(hook);
	}
	return status;
}
