#ifndef LAB_NUMBER_H
#define LAB_NUMBER_H
enum { LAB_DIGITS = 1200 };

/* All decimal digits of a finite |x|, without zeros before them; the point is behind the first
   *point of them. How many there are. */
int lab_decimal_digits(double x, char *digits, int *point);
#endif
