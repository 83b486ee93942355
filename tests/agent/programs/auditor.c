/* An auditor of the loader (rtld-audit(7)) that does nothing. */
#include <link.h>

unsigned int la_version(unsigned int version)
{
    return version;
}
